"""Population-based training: trials that lag behind go on from a better one's checkpoint, with its settings changed.

    mlplatform submit train/pbt.py
    ray job submit --working-dir train -- python pbt.py --trials 4

The lesson: this scheduler pauses trials. With `synch=True` all of them wait for each other every `--interval` steps;
then the worse ones take over checkpoint and settings of a better one, change the settings a little, and go on. All that
a trial has to do is to begin at `tune.get_checkpoint()`. It stays one child run from its first report to its last.
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
    parser.add_argument("--trials", type=int, default=2, help="members of the population")
    parser.add_argument("--steps", type=int, default=6, help="reports of a trial")
    parser.add_argument("--interval", type=int, default=2, help="steps between two comparisons")
    return parser.parse_args()


def trial(config: dict) -> None:
    """Climbs by its rate each step; where it has come from is kept with the score, so that it can be read off."""
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
    """What a trial changes of the settings that it has taken over."""
    return {**config, "rate": config["rate"] / 2}


def main() -> None:
    args = arguments()
    with mlplatform.job_run(experiment="lessons", params=vars(args)) as run:
        scheduler = PopulationBasedTraining(
            time_attr=TIME,
            perturbation_interval=args.interval,
            # Of whom is taken over, and who takes over: the better and the worse half.
            quantile_fraction=0.5,
            # Usually `hyperparam_mutations={"rate": tune.loguniform(0.1, 10)}`, which draws; this can be foretold.
            custom_explore_fn=halved,
            synch=True,
        )
        tuner = tuning.tuner(
            tune.with_resources(trial, {"cpu": 1}),
            # The first trial is slow, the others are fast: without the scheduler it would end far behind.
            param_space={"rate": tune.grid_search([1.0] + [4.0] * (args.trials - 1)), "steps": args.steps},
            tune_config=tune.TuneConfig(metric=METRIC, mode="max", scheduler=scheduler, reuse_actors=True),
            # Another trial may still need a checkpoint that its own trial has outlived.
            run_config=tuning.run_config("pbt", num_to_keep=None, stop={TIME: args.steps}),
        )
        results = tuner.fit()
        lineages = {each.metrics["trial_id"]: each.metrics["lineage"] for each in results}
        taken_over = sorted(own for own, lineage in lineages.items() if set(lineage) != {own})
        print(f"Lineages: {json.dumps(lineages)}")
        print(f"Scores: {json.dumps({each.metrics['trial_id']: each.metrics[METRIC] for each in results})}")
        print(f"Taken over: {json.dumps(taken_over)}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
