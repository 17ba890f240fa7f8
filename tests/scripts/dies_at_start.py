"""A training whose first worker dies while Ray starts the training function in it."""

import os
from pathlib import Path

import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

import mlplatform


class Deadly:
    """Kills the first worker that receives it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__dict__ = state
        if b"RayTrainWorker" in Path("/proc/self/cmdline").read_bytes() and not self.marker.exists():
            self.marker.touch()
            os._exit(1)


deadly = Deadly(Path.cwd() / f"died-in-{os.environ['MLPLATFORM_JOB_ID']}")


def train() -> None:
    assert deadly.marker.exists()
    ray.train.report({"step": 0})


TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=mlplatform.run_config(max_failures=1)).fit()
print("the training has ended")
