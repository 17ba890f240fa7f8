"""Sum a number over two processes of torchrun."""

import torch
import torch.distributed

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    number = torch.ones(1)
    torch.distributed.all_reduce(number)
    assert number.item() == 2
    torch.distributed.destroy_process_group()
