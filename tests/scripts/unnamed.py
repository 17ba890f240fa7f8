"""Trainings and a search with plain Ray's own `RunConfig`; imports nothing of the platform.

Each training prints a line of JSON: its title, the attempt, the step at which it started, and its folder.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import ray.train
from ray import tune
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

STEPS = 3


def train(config: dict) -> None:
    start = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            start = json.loads((Path(folder) / "state.json").read_text())["next"]
    # One step at least: the result has the metrics of the last checkpoint, which may be that of an earlier attempt.
    for step in range(start, max(STEPS, start + 1)):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state.json").write_text(json.dumps({"next": step + 1}))
            metrics = {"start": start, "step": step}
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
        if config.get("fails_at") == step + 1 and start == 0:
            raise ValueError("as asked")


def fit(title: str, run_config: RunConfig | None, **config: int) -> None:
    trainer = DataParallelTrainer(
        train,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.1}),
        run_config=run_config,
    )
    result = trainer.fit()
    attempt = int(os.environ["MLPLATFORM_ATTEMPT"])
    found = {"title": title, "attempt": attempt, "start": result.metrics["start"], "path": result.path}
    # In one piece: other processes write to the log, too.
    sys.stdout.write(json.dumps(found) + "\n")


def trial(config: dict) -> None:
    fit(f"trial {config['number']}", config["shared"])
    fit(f"trial {config['number']} again", RunConfig(storage_path=config["storage"]))
    tune.report({"done": 1})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("storage")
    parser.add_argument("--search", action="store_true")
    args = parser.parse_args()
    if args.search:
        numbers = tune.grid_search([0, 1])
        space = {"number": numbers, "storage": args.storage, "shared": RunConfig(storage_path=args.storage)}
        results = tune.Tuner(tune.with_resources(trial, {"cpu": 0.1}), param_space=space).fit()
        sys.exit(len(results.errors))
    fit("first", RunConfig(storage_path=args.storage))
    fit("second", RunConfig(storage_path=args.storage, failure_config=FailureConfig(max_failures=0)))
    fit("given", RunConfig(name="given", storage_path=args.storage))
    fit("no config", None)
    caught = RunConfig(storage_path=args.storage)
    try:
        fit("caught", caught, fails_at=2)
    except ray.train.WorkerGroupError:
        fit("caught", caught)
    sys.exit(int(os.environ["MLPLATFORM_ATTEMPT"]) == 1)


if __name__ == "__main__":
    main()
