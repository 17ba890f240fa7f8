"""Steps of a computation while nobody is connected to its job, and while somebody is; `rows_dev.py` connects."""

import os
import time

import torch
from harness import ALONE, TOGETHER
from scripts.common import arguments, print_result

from mlplatform.node.ssh import connected

_STEPS = 2000


def seconds_of_step(matrix: torch.Tensor) -> float:
    begun = time.perf_counter()
    for _ in range(_STEPS):
        matrix @ matrix
    return (time.perf_counter() - begun) / _STEPS


def wait_until(is_connected: bool) -> None:
    while connected(os.environ["MLPLATFORM_JOB_ID"]) != is_connected:
        time.sleep(0.1)
    time.sleep(1)  # until the shell has started, or has ended


def main() -> None:
    torch.set_num_threads(1)
    matrix = torch.rand(512, 512)
    seconds_of_step(matrix)
    pairs = []
    for _ in range(arguments().pairs):
        alone = seconds_of_step(matrix)
        print(ALONE, flush=True)
        wait_until(is_connected=True)
        pairs.append((seconds_of_step(matrix), alone))
        print(TOGETHER, flush=True)
        wait_until(is_connected=False)
    print_result(steps=pairs)


if __name__ == "__main__":
    main()
