"""Save checkpoints, resume after losing a worker, keep the best, start from another run's, or keep none.

    mlplatform submit train/checkpoints.py
    mlplatform submit train/checkpoints.py -- --start-from ADDRESS     # one that `mlplatform jobs ID` shows

The lesson: a checkpoint is a folder that rank 0 fills and passes to `report`. The training function saves and loads it.
Ray Train decides which checkpoints to keep (`metric`, `num_to_keep`) and restarts the function when a worker fails
(`max_failures`); a function that saves nothing starts over then. To start from any other checkpoint, pass its address
in the config like any other value.
"""

import argparse
import json
import tempfile
from pathlib import Path

import ray.train
from ray.train import Checkpoint, Result, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.queue import Queue

import mlplatform

METRIC = "score"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="epochs per training run")
    parser.add_argument("--keep", type=int, default=2, help="best checkpoints to keep in storage")
    parser.add_argument("--fail-at", type=int, default=3, help="epoch in which rank 1 fails; -1 for never")
    parser.add_argument("--failures", type=int, default=1, help="how many times it fails")
    parser.add_argument("--max-failures", type=int, default=1, help="worker failures to tolerate")
    parser.add_argument("--start-from", default="", help="address of a checkpoint to start from")
    return parser.parse_args()


def save(state: dict, folder: str) -> Checkpoint:
    """Save the state; a network would use `torch.save` here, and digits.py shows Lightning's way."""
    Path(folder, "state.json").write_text(json.dumps(state))
    return Checkpoint.from_directory(folder)


def load(checkpoint: Checkpoint) -> dict:
    with checkpoint.as_directory() as folder:
        return json.loads(Path(folder, "state.json").read_text())


def train(config: dict) -> None:
    """Train a model that is one number: each epoch adds its own number, so five epochs give 0 + 1 + 2 + 3 + 4 = 10."""
    rank = ray.train.get_context().get_world_rank()
    # After a restart, the run's own last checkpoint; otherwise the given one, if any.
    resumed = ray.train.get_checkpoint()
    given = Checkpoint(config["start_from"]) if config["start_from"] else None
    state = load(resumed or given) if resumed or given else {"epoch": -1, "model": 0}
    if rank == 0:
        came_from = "its own checkpoint" if resumed else "the given checkpoint" if given else "nothing"
        print(f"Started from {came_from}: epoch {state['epoch']}, model {state['model']}", flush=True)

    for epoch in range(state["epoch"] + 1, config["epochs"]):
        if rank == 1 and epoch == config["fail_at"] and not config["failures"].empty():
            config["failures"].get()
            raise RuntimeError(f"This worker fails on purpose, in epoch {epoch}.")
        state = {"epoch": epoch, "model": state["model"] + epoch}
        # The score peaks in the middle, like that of a network that then overfits.
        metrics = {**state, METRIC: 1 - abs(epoch - 2.25)}
        if rank or not config["save"]:
            ray.train.report(metrics)
            continue
        with tempfile.TemporaryDirectory() as folder:
            ray.train.report(metrics, checkpoint=save(state, folder))


def failures(count: int) -> Queue:
    """One item per failure, which the failing worker takes; it outlives the workers."""
    queue = Queue(actor_options={"num_cpus": 0})
    queue.put_nowait_batch(list(range(count)))
    return queue


def fit(name: str, config: dict, keep: int, max_failures: int = 0) -> Result:
    # DataParallelTrainer sets up no framework; TorchTrainer accepts the same arguments and needs torch in each worker.
    return DataParallelTrainer(
        train,
        train_loop_config={"start_from": "", "fail_at": -1, "save": True, **config},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=mlplatform.run_config(name, metric=METRIC, num_to_keep=keep, max_failures=max_failures),
    ).fit()


def main() -> None:
    args = arguments()
    with mlplatform.job_run(experiment="lessons", params=vars(args)) as run:
        planned = failures(args.failures)
        first = {"epochs": args.epochs, "fail_at": args.fail_at, "failures": planned, "start_from": args.start_from}
        result = fit("first", first, args.keep, args.max_failures)
        print(f"Failures left: {planned.qsize()}")
        kept = sorted((metrics["epoch"], metrics[METRIC]) for _, metrics in result.best_checkpoints)
        print(f"Kept: {json.dumps(kept)}")
        print(f"Latest: {json.dumps(load(result.checkpoint))}")
        best = result.get_best_checkpoint(METRIC, "max")
        print(f"Best: {json.dumps(load(best))}")

        # A second training run starts from the best checkpoint. The address of another job's checkpoint works too.
        address = f"{mlplatform.checkpoint_uri('first')}/{Path(best.path).name}"
        result = fit("second", {"epochs": args.epochs, "start_from": address}, args.keep)
        print(f"Second: {json.dumps(load(result.checkpoint))}")

        # Without checkpoints, a restarted training starts over.
        none = {"epochs": 3, "save": False, "fail_at": 2, "failures": failures(1)}
        result = fit("none", none, args.keep, max_failures=1)
        # A Result has only the reports that came with checkpoints; `history` has all of them.
        without = {"checkpoint": result.checkpoint, "metrics": result.metrics, "table": result.metrics_dataframe}
        print(f"Without: {json.dumps({**without, 'epochs': [one['epoch'] for one in mlplatform.history('none')]})}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
