"""Training without a model: counts steps, reports each, checkpoints every third, and resumes."""

import argparse
import json
import os
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import ray.train
from ray.train import Checkpoint, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import mlplatform

CHECKPOINT_EVERY = 3
HURRIED_PAUSE = 0.02
HELD_SECONDS = 300
"""Longer than a test takes to kill the training."""


def train(config: dict) -> None:
    rank = ray.train.get_context().get_world_rank()
    start = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            start = json.loads((Path(folder) / "state.json").read_text())["next"]
    if config["old_api"]:
        from ray.air import session

        session.report({"loss": 0})
    saved_when_asked = False
    for number in range(start, config["steps"]):
        if number == config["hold"] and not start and not Path(config["hurry"]).exists():
            time.sleep(HELD_SECONDS)
        asked = ray.train.get_preemption_info() is not None and not saved_when_asked
        time.sleep(config["late"] if rank == 1 and number == 1 else pause(config))
        metrics = {
            "loss": np.float32(1 / (number + 1)),
            "nested": {"loss": np.float32(1 / (number + 1)), "of": [np.int64(number)]},
            "rank": rank,
            "nothing": float("nan"),
            "loss[top]": number,
            "start": start,
            "asked": int(asked),
        }
        if config["numbered"]:
            metrics["step"] = number
        if (number + 1) % CHECKPOINT_EVERY and not asked:
            ray.train.report(metrics)
            continue
        saved_when_asked = saved_when_asked or asked
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state.json").write_text(json.dumps({"next": number + 1}))
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None)


def pause(config: dict) -> float:
    """Seconds before the next step: next to none once the test has created the file that hurries the job."""
    return min(config["pause"], HURRIED_PAUSE) if Path(config["hurry"]).exists() else config["pause"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds per step")
    parser.add_argument("--late", type=float, default=0.2, help="seconds of rank 1's second step")
    parser.add_argument(
        "--hold", type=int, help="step at which a training waits to be killed, unless it resumed or hurries"
    )
    parser.add_argument("--old-api", action="store_true", help="also report with the API from before Train V2")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fits", nargs="+", default=["fit"])
    parser.add_argument("--numbered", action="store_true", help="report the step instead of letting the platform count")
    parser.add_argument("--detailed", action="store_true")
    parser.add_argument("--max-failures", type=int, default=3, help="of workers, per attempt")
    parser.add_argument("--metric", help="metric that ranks checkpoints")
    parser.add_argument("--bare", action="store_true", help="let run_config open the run")
    # The default is on the volume that the stack's nodes share.
    hurry = f"/shared/hurry-{os.environ.get('MLPLATFORM_JOB_ID')}"
    parser.add_argument("--hurry", default=hurry, help="file whose existence ends the pauses")
    args = parser.parse_args()
    with nullcontext() if args.bare else mlplatform.job_run(experiment="steps", params=vars(args)):
        for name in args.fits:
            trainer = DataParallelTrainer(
                train,
                train_loop_config=vars(args),
                scaling_config=ScalingConfig(num_workers=args.workers, placement_strategy="SPREAD"),
                run_config=mlplatform.run_config(
                    name,
                    detailed=args.detailed,
                    aggregate="mean",
                    metric=args.metric,
                    max_failures=args.max_failures,
                ),
            )
            result = trainer.fit()
            print(f"{name}: checkpoint {result.checkpoint.path}")
            print(f"{name}: history {json.dumps(mlplatform.history(name))}")


if __name__ == "__main__":
    main()
