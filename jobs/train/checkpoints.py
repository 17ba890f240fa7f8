"""Save checkpoints, lose a worker, go on from the last one; keep the best; start from another run's; keep none.

    mlplatform submit train/checkpoints.py
    mlplatform submit train/checkpoints.py -- --start-from ADDRESS     # one that `mlplatform jobs ID` shows

The lesson: a checkpoint is a folder that rank 0 fills and hands to `report`. The training function saves and loads it;
Ray Train decides which ones stay (`metric`, `num_to_keep`) and starts the function again when a worker has failed
(`max_failures`). Where to begin otherwise is an ordinary entry of the config: the address of any checkpoint.
"""

import argparse
import json
import tempfile
from pathlib import Path

import ray.train
from ray.train import Checkpoint, Result, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import mlplatform

METRIC = "score"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="of each training run")
    parser.add_argument("--keep", type=int, default=2, help="best checkpoints that stay in storage")
    parser.add_argument("--fail-at", type=int, default=3, help="epoch in which rank 1 fails, once; -1: never")
    parser.add_argument("--max-failures", type=int, default=1, help="failures that are survived; 0: none")
    parser.add_argument("--start-from", default="", help="address of a checkpoint to begin with")
    return parser.parse_args()


def save(state: dict, folder: str) -> Checkpoint:
    """A network's `state_dict` would go here with `torch.save`; see digits.py for Lightning's way."""
    Path(folder, "state.json").write_text(json.dumps(state))
    return Checkpoint.from_directory(folder)


def load(checkpoint: Checkpoint) -> dict:
    with checkpoint.as_directory() as folder:
        return json.loads(Path(folder, "state.json").read_text())


def train(config: dict) -> None:
    """The model is a number, to which each epoch adds its own: after five epochs it is 0 + 1 + 2 + 3 + 4 = 10."""
    rank = ray.train.get_context().get_world_rank()
    # Its own last checkpoint, where it was started again; else the one that it was told to begin with.
    resumed = ray.train.get_checkpoint()
    given = Checkpoint(config["start_from"]) if config["start_from"] else None
    state = load(resumed or given) if resumed or given else {"epoch": -1, "model": 0}
    if rank == 0:
        came_from = "its own checkpoint" if resumed else "the given checkpoint" if given else "nothing"
        print(f"Started from {came_from}: epoch {state['epoch']}, model {state['model']}", flush=True)

    for epoch in range(state["epoch"] + 1, config["epochs"]):
        if rank == 1 and epoch == config["fail_at"] and not resumed:
            raise RuntimeError(f"This worker fails once, in epoch {epoch}.")
        state = {"epoch": epoch, "model": state["model"] + epoch}
        # Best in the middle, as a network's is that begins to learn its training data by heart.
        metrics = {**state, METRIC: 1 - abs(epoch - 2.25)}
        if rank or not config["save"]:
            ray.train.report(metrics)
            continue
        with tempfile.TemporaryDirectory() as folder:
            ray.train.report(metrics, checkpoint=save(state, folder))


def fit(name: str, config: dict, keep: int, max_failures: int = 0) -> Result:
    # A DataParallelTrainer sets no framework up; TorchTrainer, which needs torch in each worker, takes the same.
    return DataParallelTrainer(
        train,
        train_loop_config={"start_from": "", "fail_at": -1, "save": True, **config},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=mlplatform.run_config(name, metric=METRIC, num_to_keep=keep, max_failures=max_failures),
    ).fit()


def main() -> None:
    args = arguments()
    with mlplatform.job_run(experiment="lessons", params=vars(args)) as run:
        first = {"epochs": args.epochs, "fail_at": args.fail_at, "start_from": args.start_from}
        result = fit("first", first, args.keep, args.max_failures)
        kept = sorted((metrics["epoch"], metrics[METRIC]) for _, metrics in result.best_checkpoints)
        print(f"Kept: {json.dumps(kept)}")
        print(f"Latest: {json.dumps(load(result.checkpoint))}")
        best = result.get_best_checkpoint(METRIC, "max")
        print(f"Best: {json.dumps(load(best))}")

        # Another training run goes on where the best one was; it could as well be another job's, by its address.
        address = f"{mlplatform.checkpoint_uri('first')}/{Path(best.path).name}"
        result = fit("second", {"epochs": args.epochs, "start_from": address}, args.keep)
        print(f"Second: {json.dumps(load(result.checkpoint))}")

        result = fit("none", {"epochs": 2, "save": False}, args.keep)
        # A result knows the reports of its checkpoints alone; all of them are in `history`.
        without = {"checkpoint": result.checkpoint, "metrics": result.metrics, "table": result.metrics_dataframe}
        print(f"Without: {json.dumps({**without, 'epochs': [one['epoch'] for one in mlplatform.history('none')]})}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
