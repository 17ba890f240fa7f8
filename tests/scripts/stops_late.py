"""Two trials in one process: the first needs a while to end after it was stopped, as one that closes its files does."""

import time

from ray import tune

from mlplatform import tuning


def trial(config: dict[str, int]) -> None:
    try:
        while True:
            tune.report({"score": config["number"]})
    finally:
        time.sleep(4)


if __name__ == "__main__":
    results = tuning.tuner(
        trial,
        param_space={"number": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="score", mode="max", max_concurrent_trials=1, reuse_actors=True),
        run_config=tuning.run_config(stop={"training_iteration": 2}),
    ).fit()
    print(f"errors: {results.num_errors}, scores: {sorted(result.metrics['score'] for result in results)}")
