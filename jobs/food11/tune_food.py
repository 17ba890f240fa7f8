"""Tune the batch size and dropout of the Lightning network of Food-11 in 16 trials, most of them stopped early.

    mlplatform submit food11/tune_food.py -- --epochs 8
    ray job submit --working-dir food11 -- python tune_food.py --epochs 8

The lesson: a trial is a function that reports after each epoch. ASHA runs every trial for one epoch, the better half
for two, the better half of those for four, and so on, so poor combinations cost little. Each trial is a child run of
the job's run, where MLflow can compare them; the log ends with a table of all trials.
"""

import torch
from lightning_food import Food, loader, options, trainer
from ray import tune
from ray.tune.integration.pytorch_lightning import TuneReportCheckpointCallback
from ray.tune.schedulers import ASHAScheduler

import mlplatform
from mlplatform import tuning

# The first one ranks trials: unlike the accuracy on a few photos, it is almost never equal for two trials.
METRICS = ["val_loss", "val_accuracy", "train_loss"]


def trial(config: dict) -> None:
    """Train with one combination of settings; a restarted trial resumes from its last checkpoint."""
    torch.manual_seed(config["seed"])
    report = TuneReportCheckpointCallback(METRICS, on="train_epoch_end")
    fitting = trainer(config, report, accelerator="auto", devices=1, enable_model_summary=False)
    model = Food(config["lr"], config["dropout"], config["pretrained"])
    loaders = loader("training", config), loader("validation", config)
    with mlplatform.resume_path(tune.get_checkpoint(), "checkpoint") as path:
        fitting.fit(model, *loaders, ckpt_path=path)


def table(results: tune.ResultGrid, epochs: int) -> str:
    """Table with one line per trial, best first."""
    lines = [f"{'trial':>12} {'batch size':>10} {'dropout':>8} {'epochs':>6} {'val_loss':>8} {'val_accuracy':>12}"]
    for result in sorted(results, key=lambda result: result.metrics[METRICS[0]]):
        done, shown = result.metrics["training_iteration"], result.config
        lines.append(
            f"{result.metrics['trial_id']:>12} {shown['batch_size']:>10} {shown['dropout']:>8.3f} {done:>6} "
            f"{result.metrics['val_loss']:>8.4f} {result.metrics['val_accuracy']:>12.4f}"
            f"{'  stopped early' if done < epochs else ''}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = options()
    parser.description = __doc__
    parser.add_argument("--trials", type=int, default=16, help="combinations to try")
    parser.add_argument("--cpus", type=float, default=1, help="CPUs per trial; 0.5 lets two trials share one")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs per trial; 0.25 lets four trials share one")
    parser.add_argument("--memory", type=float, help="GiB reserved per trial; default: 6 without GPUs, else 0")
    parser.add_argument("--at-once", type=int, help="maximum concurrent trials; default: as many as fit")
    args = parser.parse_args()
    if args.memory is None:
        # On a CPU, batches of 64 photos of 224 pixels use 5.7 GB once all layers are trained. Ray accounts for memory
        # only if it is requested.
        args.memory = 0 if args.gpus else 6

    # Only the scheduler stops trials early here, so Lightning's early stopping is disabled.
    fixed = {**vars(args), "patience": args.epochs}
    with mlplatform.job_run(experiment="food11-classifier", params=vars(args)) as run:
        results = tuning.tuner(
            tune.with_resources(trial, {"cpu": args.cpus, "gpu": args.gpus, "memory": args.memory * 2**30}),
            param_space={**fixed, "batch_size": tune.choice([32, 64]), "dropout": tune.uniform(0.1, 0.8)},
            tune_config=tune.TuneConfig(
                metric=METRICS[0],
                mode="min",
                num_samples=args.trials,
                max_concurrent_trials=args.at_once,
                scheduler=ASHAScheduler(max_t=args.epochs, grace_period=1, reduction_factor=2),
                # With reuse_actors, a process that has already imported torch runs the next trial.
                reuse_actors=True,
            ),
        ).fit()
        print(table(results, args.epochs))
        result, child = tuning.best(results)
        print(f"Best: batch size {result.config['batch_size']}, dropout {result.config['dropout']:.3f}")
        if run:
            print(f"Run of the best trial: {mlplatform.run_url(child)}")
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
