"""Training whose first group uses all memory of a node: one rank's data loader keeps every batch; it resumes."""

import json
import os
import tempfile
from pathlib import Path

import ray.train
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader, Dataset, get_worker_info

import mlplatform

BATCH_BYTES = 64 << 20
STEPS = 4


class Batches(Dataset):
    """Items; the first of the loader's processes keeps them on request, until the kernel ends it.

    The kernel ends the largest process. If all of them kept items, that could be their parent when little is left.
    """

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.kept: list[bytearray] = []

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> int:
        if self.keep and get_worker_info().id == 0:
            self.kept.append(bytearray(os.urandom(1) * BATCH_BYTES))
        return index


def train() -> None:
    start = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            start = json.loads((Path(folder) / "state.json").read_text())["next"]
    rank = ray.train.get_context().get_world_rank()
    for number in range(start, STEPS):
        if number == STEPS // 2 and not start and rank == 1:
            # Lists, because a tensor is fetched from the process that made it: one that the kernel ends in between is a
            # reset connection to its parent, and not an ended process.
            for _ in DataLoader(Batches(keep=True), num_workers=4, collate_fn=list):
                pass
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state.json").write_text(json.dumps({"next": number + 1}))
            ray.train.report(
                {"start": start},
                checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None,
            )


if __name__ == "__main__":
    with mlplatform.job_run(experiment="loaders"):
        TorchTrainer(
            train, scaling_config=ScalingConfig(num_workers=2), run_config=mlplatform.run_config(max_failures=1)
        ).fit()
