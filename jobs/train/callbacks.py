"""Write what is reported to files of your own: JSON lines, CSV and TensorBoard, for Ray Train and for Ray Tune.

    mlplatform submit train/callbacks.py
    ray job submit --working-dir train -- python callbacks.py --name first --place /shared/logs

The lesson: a callback of Ray Train is a class with `after_report`, and sees what each rank has reported. Ray Tune
brings loggers of its own, one folder a trial. Both stand beside the platform's callbacks, which go on sending every
report to MLflow: there is one run for the job and one for each trial, no more. The files end as artifacts of the job's
run, below the folder's name and the attempt, so that a second attempt does not overwrite the first one's.
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
    parser.add_argument("--name", default="logs", help="of the folder of the logs")
    parser.add_argument("--place", type=Path, default=Path(), help="where that folder is made; default: here")
    parser.add_argument("--epochs", type=int, default=3, help="reports of the training and of each trial")
    parser.add_argument("--workers", type=int, default=2, help="processes that train together")
    return parser.parse_args()


class Files(UserCallback):
    """Base of those below: makes its folder. Train's controller, where they run, is on the driver's node.

    What a callback raises ends the training, and training waits while it writes: keep it short.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder


class JsonLines(Files):
    """A line a report, with a list of what each rank has reported."""

    def after_report(self, run_context, metrics, checkpoint) -> None:
        with (self.folder / "reports.jsonl").open("a") as file:
            file.write(json.dumps(metrics) + "\n")


class Csv(Files):
    """A row a report and rank."""

    def after_report(self, run_context, metrics, checkpoint) -> None:
        with (self.folder / "reports.csv").open("a", newline="") as file:
            table = csv.DictWriter(file, ["rank", *metrics[0]])
            if file.tell() == 0:
                table.writeheader()
            table.writerows({"rank": rank, **values} for rank, values in enumerate(metrics))


class TensorBoard(Files):
    """A curve a metric and rank."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # Made in the controller: the callback is pickled on its way there, and a writer has a thread.
        self.writers = {}

    def after_report(self, run_context, metrics, checkpoint) -> None:
        # Of tensorboardX, which Tune's logger uses, `flush` leaves behind what its thread has not taken yet.
        from torch.utils.tensorboard import SummaryWriter

        for rank, values in enumerate(metrics):
            if rank not in self.writers:
                self.writers[rank] = SummaryWriter(str(self.folder / f"rank{rank}"))
            for key in values.keys() - {"epoch"}:
                self.writers[rank].add_scalar(key, values[key], values["epoch"])
            self.writers[rank].flush()


class Printing(UserCallback):
    """A line in the job's log a report, and one for each rank that fails."""

    def after_report(self, run_context, metrics, checkpoint) -> None:
        print(f"Ranks reported: {json.dumps(metrics)}", flush=True)

    def after_exception(self, run_context, worker_exceptions) -> None:
        for rank, error in worker_exceptions.items():
            print(f"Rank {rank} failed: {error}", flush=True)


def train(config: dict) -> None:
    """What each worker runs: a loss that falls with the epochs and is higher on the higher ranks."""
    rank = ray.train.get_context().get_world_rank()
    for epoch in range(config["epochs"]):
        ray.train.report({"epoch": epoch, "loss": (rank + 1) / 2**epoch})


def trial(config: dict) -> None:
    """What each trial of the search runs."""
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

        # Ray would add these three by itself; named, they can be left out or replaced.
        loggers = [JsonLoggerCallback(), CSVLoggerCallback(), TBXLoggerCallback()]
        results = tuning.tuner(
            tune.with_resources(trial, {"cpu": 0.5}),
            param_space={"height": tune.grid_search([1.0, 3.0]), "epochs": args.epochs},
            # Every trial to its end; ASHA, our default, would stop the one that starts higher.
            tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=FIFOScheduler()),
            run_config=tuning.run_config("tune", metric="loss", mode="min", callbacks=loggers),
        ).fit()
        for result in results:
            # Tune has put them into checkpoint storage, a folder a trial.
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
