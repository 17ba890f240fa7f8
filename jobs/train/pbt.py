"""Population-based training: poor trials continue from a better trial's checkpoint, with changed settings.

    mlplatform submit train/pbt.py
    ray job submit --working-dir train -- python pbt.py --trials 4

The lesson: this scheduler pauses trials. With `synch=True`, all trials wait for each other every `--interval` steps.
Then the worse ones copy the checkpoint and the settings of a better one, change the settings a little, and continue. A
trial only has to start from `tune.get_checkpoint()`. It remains one child run from its first report to its last.
"""

import argparse
import json
import tempfile
from pathlib import Path

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

import mlplatform
from mlplatform import tuning

METRIC = "score"
TIME = "training_iteration"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2, help="size of the population")
    parser.add_argument("--steps", type=int, default=6, help="reports per trial")
    parser.add_argument("--interval", type=int, default=2, help="steps between comparisons")
    return parser.parse_args()


def trial(config: dict) -> None:
    """Raise the score by `rate` each step; the checkpoint also records which trials produced it."""
    state = {"step": 0, METRIC: 0.0, "lineage": []}
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = json.loads(Path(folder, "state.json").read_text())
    own = tune.get_context().get_trial_id()
    for step in range(state["step"] + 1, config["steps"] + 1):
        state = {"step": step, METRIC: state[METRIC] + config["rate"], "lineage": [*state["lineage"], own]}
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps(state))
            metrics = {"step": step, METRIC: state[METRIC], "rate": config["rate"], "lineage": state["lineage"]}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def halved(config: dict) -> dict:
    """Halve the rate of the copied settings."""
    return {**config, "rate": config["rate"] / 2}


def main() -> None:
    args = arguments()
    with mlplatform.job_run(experiment="lessons", params=vars(args)) as run:
        scheduler = PopulationBasedTraining(
            time_attr=TIME,
            perturbation_interval=args.interval,
            # The worse half copies from the better half.
            quantile_fraction=0.5,
            # Usually `hyperparam_mutations={"rate": tune.loguniform(0.1, 10)}`, which is random; this is deterministic.
            custom_explore_fn=halved,
            synch=True,
        )
        tuner = tuning.tuner(
            tune.with_resources(trial, {"cpu": 1}),
            # The first trial is slow and the others are fast: without the scheduler it would finish far behind.
            param_space={"rate": tune.grid_search([1.0] + [4.0] * (args.trials - 1)), "steps": args.steps},
            tune_config=tune.TuneConfig(metric=METRIC, mode="max", scheduler=scheduler, reuse_actors=True),
            # Keep all checkpoints: another trial may still need one that its own trial no longer does.
            run_config=tuning.run_config("pbt", num_to_keep=None, stop={TIME: args.steps}),
        )
        results = tuner.fit()
        lineages = {each.metrics["trial_id"]: each.metrics["lineage"] for each in results}
        replaced = sorted(own for own, lineage in lineages.items() if set(lineage) != {own})
        print(f"Lineages: {json.dumps(lineages)}")
        print(f"Scores: {json.dumps({each.metrics['trial_id']: each.metrics[METRIC] for each in results})}")
        print(f"Replaced: {json.dumps(replaced)}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
