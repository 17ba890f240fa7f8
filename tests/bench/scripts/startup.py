"""Seconds of a whole program in which two workers sum a number: with the platform, and with torchrun.

This job starts both, one after the other, on the same node.
"""

import itertools
import subprocess
import sys
import time

from harness import interleaved
from scripts.common import arguments, print_result, remove_files_of_job

_fits = itertools.count()
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


def seconds(*command: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True)
    return time.perf_counter() - start


def main() -> None:
    args = arguments()

    def ours() -> float:
        # A new name each time, or Ray Train would treat it as the training that has already ended.
        return seconds("-m", "scripts.trivial_fit", f"fit-{next(_fits)}")

    def torchrun() -> float:
        return seconds(*TORCHRUN, "-m", "scripts.trivial_torchrun")

    if not args.quick:
        torchrun()  # reads torch from disk
    try:
        print_result(startup=interleaved(ours, torchrun, args.pairs))
    finally:
        remove_files_of_job()


if __name__ == "__main__":
    main()
