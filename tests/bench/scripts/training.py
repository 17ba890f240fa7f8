"""The same training with the same TorchTrainer, with and without the platform's run and run configuration.

The clock runs in the training function on rank 0, from the first step until the last report has returned, so that
start-up does not count. CPU time is that of rank 0's process with all of its threads. Afterwards, each tracked training
also measures how long a report blocks the loop while its checkpoint is uploaded, asynchronously and synchronously.
"""

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import ray.train
import torch
from harness import interleaved, is_decided
from ray.train import Checkpoint, CheckpointUploadMode, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from scripts.common import arguments, print_result, remove_files_of_job, write_random
from torch import nn

import mlplatform

CHECKPOINT_MB = 10
REPORTS_BETWEEN_CHECKPOINTS = 5
BATCH = 64
TARGET = 1.02
MOST_PAIRS = 40
_fits = itertools.count()


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


class Loop:
    """Steps of plain PyTorch on one thread, with data in memory."""

    def __init__(self, model: nn.Module) -> None:
        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(0)
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.images = torch.randn(BATCH, 3, 32, 32, generator=generator)
        self.labels = torch.randint(10, (BATCH,), generator=generator)

    def run(self, steps: int) -> float:
        """Take steps and return the last one's loss."""
        for _ in range(steps):
            loss = nn.functional.cross_entropy(self.model(self.images), self.labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


def train(config: dict) -> dict[str, list[float] | float]:
    """Take steps and return rank 0's seconds and CPU seconds per step, and the stalls of the modes to measure."""
    loop = Loop(prepare_model(network()))
    loop.run(5)
    rank = ray.train.get_context().get_world_rank()
    with tempfile.TemporaryDirectory() as folder:
        write_random(Path(folder) / "state", CHECKPOINT_MB)
        checkpoint = Checkpoint.from_directory(folder) if rank == 0 else None
        torch.distributed.barrier()
        start, cpu_start = time.perf_counter(), time.process_time()
        for number in range(1, config["reports"] + 1):
            loss = loop.run(config["steps_per_report"])
            metrics = {"loss": loss, "learning_rate": 1e-3}
            ray.train.report(metrics, checkpoint=None if number % REPORTS_BETWEEN_CHECKPOINTS else checkpoint)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        # Keep the folder until Ray has registered all checkpoints, because it reads from it.
        ray.train.get_all_reported_checkpoints()
    steps = config["reports"] * config["steps_per_report"]
    times = {"seconds": seconds / steps, "cpu_seconds": cpu_seconds / steps}
    return {**times, "stalls": [stall(mode, rank, config["stall_mb"]) for mode in config["stall_modes"]]}


def stall(mode: str, rank: int, megabytes: int) -> float:
    """Seconds for which a report with a checkpoint blocks the training loop of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        if rank == 0:
            write_random(Path(folder) / "state", megabytes)
        torch.distributed.barrier()
        start = time.perf_counter()
        checkpoint = Checkpoint.from_directory(folder) if rank == 0 else None
        ray.train.report({"loss": 0.0}, checkpoint=checkpoint, checkpoint_upload_mode=CheckpointUploadMode[mode])
        seconds = time.perf_counter() - start
        # Wait until the checkpoint is registered, so that the folder is unused and nothing delays the next report.
        ray.train.get_all_reported_checkpoints()
    return seconds


@contextmanager
def own_environment() -> Iterator[None]:
    """Undo what `run_config` sets, or Ray Train would poll the plain training as often as the tracked one."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def fit(config: dict, tracked: bool) -> dict:
    """Run one training and return the measurements of rank 0."""
    name = f"{'tracked' if tracked else 'plain'}-{next(_fits)}"
    with own_environment(), mlplatform.job_run(experiment="bench") if tracked else nullcontext():
        if tracked:
            run_config = mlplatform.run_config(name)
        else:
            run_config = RunConfig(name=name, storage_path=mlplatform.checkpoint_uri())
        scaling = ScalingConfig(num_workers=2)
        trainer = TorchTrainer(train, train_loop_config=config, scaling_config=scaling, run_config=run_config)
        measured = trainer.fit().return_value
    print(f"{name}: {measured}", flush=True)
    return measured


def steps_in(seconds: float) -> int:
    """Steps that a single process takes in `seconds`; two processes that share the machine need at least that long."""
    loop = Loop(network())
    loop.run(20)
    start = time.perf_counter()
    loop.run(40)
    return max(1, round(seconds * 40 / (time.perf_counter() - start)))


def main(args: argparse.Namespace) -> None:
    seconds_per_report, reports = (0.2, 5) if args.quick else (3.0, 21)
    config = {"steps_per_report": steps_in(seconds_per_report), "reports": reports}
    config["stall_mb"] = 32 if args.quick else 256
    stalls: list[tuple[float, float]] = []

    def tracked() -> tuple[float, float]:
        modes = ["ASYNC", "SYNC"] if len(stalls) % 2 == 0 else ["SYNC", "ASYNC"]
        measured = fit({**config, "stall_modes": modes}, tracked=True)
        held = dict(zip(modes, measured["stalls"], strict=True))
        stalls.append((held["ASYNC"], held["SYNC"]))
        return measured["seconds"], measured["cpu_seconds"]

    def plain() -> tuple[float, float]:
        measured = fit({**config, "stall_modes": []}, tracked=False)
        return measured["seconds"], measured["cpu_seconds"]

    def are_decided(pairs: list[tuple[tuple[float, float], tuple[float, float]]]) -> bool:
        return len(pairs) >= args.pairs and all(is_decided(row, TARGET) for row in by_clock(pairs))

    try:
        # The time of a step varies by more than the target allows, so take pairs until the mean is known well enough.
        pairs = interleaved(tracked, plain, args.pairs if args.quick else max(MOST_PAIRS, args.pairs), are_decided)
    finally:
        remove_files_of_job()
    wall, cpu = by_clock(pairs)
    print_result(training=wall, training_cpu=cpu, stall=stalls)


def by_clock(pairs: list[tuple[tuple[float, float], tuple[float, float]]]) -> list[list[tuple[float, float]]]:
    """Split pairs of measurements by two clocks into one list of pairs per clock."""
    return [[(ours[clock], theirs[clock]) for ours, theirs in pairs] for clock in (0, 1)]


if __name__ == "__main__":
    main(arguments())
