"""Take GPUs from Ray with actors, undeclared at submission, and hold them; `takes_gpus.py 2` takes two."""

import signal
import sys

import ray


@ray.remote(num_cpus=1, num_gpus=1)
class Holder:
    def holds(self) -> list[int]:
        return ray.get_gpu_ids()


holders = [Holder.remote() for _ in range(int(sys.argv[1]))]
for gpus in ray.get([holder.holds.remote() for holder in holders]):
    print("took GPU", *gpus, flush=True)
signal.pause()
