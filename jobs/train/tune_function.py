"""Tune an unmodified training function: a grid of three values, two workers per trial.

    mlplatform submit train/tune_function.py
    ray job submit --working-dir train -- python tune_function.py --epochs 2

The lesson: `train` is an ordinary training function for a trainer, unchanged. A trial is a three-line function that
creates the trainer and calls `fit`. `tuning.trial_config` forwards rank 0's reports to Tune, so each trial is a child
run. The trial itself reserves almost no CPU, which leaves room for its two workers; trials that do not fit yet wait.
"""

import argparse
import json

import ray.train
import torch.distributed
from ray import tune
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, get_device

import mlplatform
from mlplatform import tuning

METRIC = "output"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2, help="reports per trial")
    parser.add_argument("--inputs", type=int, nargs="+", default=[1, 2, 3], help="grid values")
    parser.add_argument("--workers", type=int, default=2, help="workers per trial")
    parser.add_argument(
        "--at-once", type=int, default=1, help="maximum concurrent trials; the cluster must have room for their workers"
    )
    parser.add_argument("--use-gpu", action="store_true", help="give each worker one GPU")
    return parser.parse_args()


def train(config: dict) -> None:
    """Training function that runs on each worker; the mean of the ranks' outputs equals the input."""
    context = ray.train.get_context()
    rank, ranks = context.get_world_rank(), context.get_world_size()
    output = torch.tensor(config["input"] * (rank + 0.5) * 2 / ranks, device=get_device())
    torch.distributed.all_reduce(output)
    for epoch in range(config["epochs"]):
        ray.train.report({"epoch": epoch, METRIC: output.item() / ranks, "ranks": ranks})


def trial(config: dict) -> None:
    """Trial function that Tune runs."""
    TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=config["workers"], use_gpu=config["use_gpu"]),
        run_config=tuning.trial_config(),
    ).fit()


def main() -> None:
    args = arguments()
    with mlplatform.job_run(experiment="lessons", params=vars(args)) as run:
        # First without a search: the same function, with one of the values.
        TorchTrainer(
            train,
            train_loop_config={"input": args.inputs[0], "epochs": args.epochs},
            scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=args.use_gpu),
            run_config=mlplatform.run_config("alone"),
        ).fit()
        print(f"Alone: {json.dumps([report[METRIC] for report in mlplatform.history('alone')])}")

        tuner = tuning.tuner(
            tune.with_resources(trial, {"cpu": 0.01}),
            param_space={
                "input": tune.grid_search(args.inputs),
                "epochs": args.epochs,
                "workers": args.workers,
                "use_gpu": args.use_gpu,
            },
            # Otherwise two trials could each get half of their workers and wait for each other forever.
            tune_config=tune.TuneConfig(metric=METRIC, mode="max", max_concurrent_trials=args.at_once),
        )
        results = tuner.fit()
        result, child = tuning.best(results)
        print(f"Trials: {json.dumps(sorted(each.metrics[METRIC] for each in results))}")
        print(f"Best config: {json.dumps({'input': result.config['input'], 'epochs': result.config['epochs']})}")
        if run:
            print(f"Best run: {mlplatform.run_url(child)}")


if __name__ == "__main__":
    main()
