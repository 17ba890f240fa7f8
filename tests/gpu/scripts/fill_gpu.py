"""Use a part of a GPU's memory, as in 0.6, and compute with a little of it until the job is stopped."""

import sys

import torch

part = float(sys.argv[1])
filler = torch.empty(int(torch.cuda.mem_get_info()[1] * part), dtype=torch.uint8, device="cuda")
matrix = torch.rand(4096, 4096, device="cuda")
print(f"Uses {filler.numel() / 2**30:.1f} GiB", flush=True)
while True:
    matrix = torch.tanh(matrix @ matrix / 4096)
    torch.cuda.synchronize()
