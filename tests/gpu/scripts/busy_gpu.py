"""Use a GPU as a training with a slow data loader does: compute, wait, and repeat the given number of times."""

import sys
import time

import torch

matrix = torch.rand(4096, 4096, device="cuda")
for _ in range(int(sys.argv[1])):
    for _ in range(10):
        matrix = torch.tanh(matrix @ matrix / 4096)
    torch.cuda.synchronize()
    time.sleep(0.05)
