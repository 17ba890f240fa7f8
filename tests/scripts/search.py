"""Search without a model: trials count epochs, reporting and checkpointing each; the best wait at the third for a file.

Each start of a trial appends a line with its id and first epoch to `starts` in the given folder.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import ray.train
from ray import tune
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import mlplatform
from mlplatform import tuning

EPOCHS = 6
GATED_EPOCH = 2
GATE_SECONDS = 120
BEST = 0.9
QUALITIES = [BEST, BEST, 0.8, 0.7, 0.6, 0.5, 0.4, -1.0]


def first_epoch(checkpoint: tune.Checkpoint | None) -> int:
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        return json.loads((Path(folder) / "state.json").read_text())["next"]


def wait_for_gate(folder: Path) -> None:
    deadline = time.monotonic() + GATE_SECONDS
    while not (folder / "gate").exists():
        assert time.monotonic() < deadline, f"no file 'gate' in {folder} within {GATE_SECONDS} s"
        time.sleep(0.1)


def trial(config: dict) -> None:
    folder = Path(config["folder"])
    start = first_epoch(tune.get_checkpoint())
    with (folder / "starts").open("a") as file:
        file.write(f"{tune.get_context().get_trial_id()} {start}\n")
    if config["quality"] < 0:
        raise ValueError("this quality cannot be trained")
    for epoch in range(start, EPOCHS):
        if config["quality"] == BEST and epoch == GATED_EPOCH:
            wait_for_gate(folder)
        with tempfile.TemporaryDirectory() as state:
            (Path(state) / "state.json").write_text(json.dumps({"next": epoch + 1}))
            metrics = {"epoch": epoch, "accuracy": config["quality"] * (1 - 0.5 ** (epoch + 1))}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(state))


def worker(config: dict) -> None:
    rank = ray.train.get_context().get_world_rank()
    start = first_epoch(ray.train.get_checkpoint())
    print(f"rank {rank} starts at epoch {start}", flush=True)
    for epoch in range(start, 3):
        if rank == 0 and epoch == 2 and not start:
            raise RuntimeError("this worker fails once")
        with tempfile.TemporaryDirectory() as state:
            (Path(state) / "state.json").write_text(json.dumps({"next": epoch + 1}))
            checkpoint = ray.train.Checkpoint.from_directory(state) if rank == 0 else None
            ray.train.report({"epoch": epoch, "accuracy": config["lr"] * epoch}, checkpoint=checkpoint)


def two_workers(config: dict) -> None:
    trainer = DataParallelTrainer(
        worker,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=tuning.trial_config(),
    )
    trainer.fit()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--qualities", type=float, nargs="+", default=QUALITIES, help="one per trial")
    parser.add_argument("--workers", action="store_true", help="one trial on two workers")
    args = parser.parse_args()
    (args.folder / "driver").write_text(str(os.getpid()))
    config = tune.TuneConfig(metric="accuracy", mode="max", reuse_actors=True)
    with mlplatform.job_run(experiment="search"):
        if args.workers:
            search = tuning.tuner(
                tune.with_resources(two_workers, {"cpu": 0.01}),
                param_space={"lr": tune.uniform(0.1, 0.2)},
                tune_config=config,
            )
        else:
            search = tuning.tuner(
                trial,
                param_space={"quality": tune.grid_search(args.qualities), "folder": str(args.folder)},
                tune_config=config,
                run_config=tuning.run_config("qualities", metric="accuracy", max_failures=0),
            )
        results = search.fit()
        result, run = tuning.best(results)
        print(f"best: {json.dumps({'run': run.info.run_id, 'config': result.config})}")


if __name__ == "__main__":
    main()
