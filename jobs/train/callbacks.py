"""Write reports to your own JSON Lines, CSV and TensorBoard files, with Ray Train and Ray Tune.

    mlplatform submit train/callbacks.py
    ray job submit --working-dir train -- python callbacks.py --name first --place /shared/logs

The lesson: a Ray Train callback is a class with `after_report`, which receives the reports of all ranks. Ray Tune has
its own loggers, which write one folder per trial. Both work beside the platform's callbacks, which keep sending every
report to MLflow: one run for the job and one per trial. The files become artifacts of the job's run, in a folder per
attempt, so that a second attempt does not overwrite the first one's files.
"""

import argparse
import csv
import json
from pathlib import Path

import ray.train
from pyarrow.fs import LocalFileSystem, copy_files
from ray import tune
from ray.train import ScalingConfig, UserCallback
from ray.train.torch import TorchTrainer
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback
from ray.tune.schedulers import FIFOScheduler

import mlplatform
from mlplatform import tuning


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="logs", help="name of the log folder")
    parser.add_argument("--place", type=Path, default=Path(), help="parent of the log folder; default: here")
    parser.add_argument("--epochs", type=int, default=3, help="reports per training run and trial")
    parser.add_argument("--workers", type=int, default=2, help="training processes")
    return parser.parse_args()


class Files(UserCallback):
    """Base class of the callbacks below: creates the folder.

    Callbacks run in Ray Train's controller, on the driver's node. An exception in a callback ends the training, and
    training waits until the callback returns: keep it short.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder


class JsonLines(Files):
    """One line per report: a list of the metrics of each rank."""

    def after_report(self, run_context, metrics, checkpoint) -> None:
        with (self.folder / "reports.jsonl").open("a") as file:
            file.write(json.dumps(metrics) + "\n")


class Csv(Files):
    """One row per report and rank."""

    def after_report(self, run_context, metrics, checkpoint) -> None:
        with (self.folder / "reports.csv").open("a", newline="") as file:
            table = csv.DictWriter(file, ["rank", *metrics[0]])
            if file.tell() == 0:
                table.writeheader()
            table.writerows({"rank": rank, **values} for rank, values in enumerate(metrics))


class TensorBoard(Files):
    """One curve per metric and rank."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # Writers are created later, in the controller: they have threads, and the callback is pickled on its way there.
        self.writers = {}

    def after_report(self, run_context, metrics, checkpoint) -> None:
        # Not tensorboardX, which Tune's logger uses: its `flush` skips events that are still in its thread's queue.
        from torch.utils.tensorboard import SummaryWriter

        for rank, values in enumerate(metrics):
            if rank not in self.writers:
                self.writers[rank] = SummaryWriter(str(self.folder / f"rank{rank}"))
            for key in values.keys() - {"epoch"}:
                self.writers[rank].add_scalar(key, values[key], values["epoch"])
            self.writers[rank].flush()


class Printing(UserCallback):
    """One line in the job's log per report and per failed rank."""

    def after_report(self, run_context, metrics, checkpoint) -> None:
        print(f"Ranks reported: {json.dumps(metrics)}", flush=True)

    def after_exception(self, run_context, worker_exceptions) -> None:
        for rank, error in worker_exceptions.items():
            print(f"Rank {rank} failed: {error}", flush=True)


def train(config: dict) -> None:
    """Training function that runs on each worker: the loss falls with the epochs and rises with the rank."""
    rank = ray.train.get_context().get_world_rank()
    for epoch in range(config["epochs"]):
        ray.train.report({"epoch": epoch, "loss": (rank + 1) / 2**epoch})


def trial(config: dict) -> None:
    """Trial function of the search."""
    for epoch in range(config["epochs"]):
        tune.report({"epoch": epoch, "loss": config["height"] / 2**epoch})


def main() -> None:
    args = arguments()
    job = mlplatform.Settings.load()
    attempt = f"attempt-{job.attempt}"
    folder = args.place.absolute() / args.name / str(job.job_id) / attempt
    with mlplatform.job_run(experiment="train", params=vars(args)) as run:
        written = [JsonLines(folder / "train"), Csv(folder / "train"), TensorBoard(folder / "train")]
        TorchTrainer(
            train,
            train_loop_config={"epochs": args.epochs},
            scaling_config=ScalingConfig(num_workers=args.workers),
            run_config=mlplatform.run_config("train", callbacks=[*written, Printing()]),
        ).fit()

        # Ray adds these three by default; listed explicitly, they can be removed or replaced.
        loggers = [JsonLoggerCallback(), CSVLoggerCallback(), TBXLoggerCallback()]
        results = tuning.tuner(
            tune.with_resources(trial, {"cpu": 0.5}),
            param_space={"height": tune.grid_search([1.0, 3.0]), "epochs": args.epochs},
            # Run every trial to its end; the platform's default, ASHA, would stop the one with the higher loss.
            tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=FIFOScheduler()),
            run_config=tuning.run_config("tune", metric="loss", mode="min", callbacks=loggers),
        ).fit()
        for result in results:
            # Tune has written them to checkpoint storage, one folder per trial.
            local = folder / "tune" / Path(result.path).name
            local.mkdir(parents=True)
            copy_files(result.path, str(local), result.filesystem, LocalFileSystem())

        print(f"Written to {folder}:")
        print(*sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()), sep="\n")
        if run:
            import mlflow

            mlflow.log_artifacts(str(folder), f"{args.name}/{attempt}")
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
