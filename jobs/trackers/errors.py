"""Make common mistakes with trackers and reports, one at a time, to see the platform's error messages.

    mlplatform submit trackers/errors.py -- --which wandb-key
    ray job submit --working-dir trackers -- python errors.py --which tune-report

The lesson: a worker is a different machine. The files in your home folder (logins, configuration) are not there; pass
them in the job's environment, as a secret of the stack, or through `/shared`. And inside a training function, only
`ray.train.report` has an effect. The job fails on purpose, with a message in its log that names the fix.
"""

import argparse
import os

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

import mlplatform


def wandb_key() -> None:
    """Go online without a key: the key from your own login exists on your machine only."""
    os.environ["WANDB_MODE"] = "online"
    mlplatform.tracker("wandb")


def comet_key() -> None:
    os.environ["COMET_START_ONLINE"] = "true"
    mlplatform.tracker("comet")


def databricks_file() -> None:
    """Point to a configuration file that exists only on the machine where it was written."""
    import mlflow

    os.environ["DATABRICKS_CONFIG_FILE"] = "/nowhere/databrickscfg"
    mlflow.set_tracking_uri("databricks")
    with mlplatform.job_run():
        mlflow.log_metric("loss", 1.0)


def tune_report() -> None:
    """Call Tune's report function in a training function that Tune did not start."""
    from ray import tune

    tune.report({"loss": 1.0})


MISTAKES = {
    "wandb-key": wandb_key,
    "comet-key": comet_key,
    "databricks-file": databricks_file,
    "tune-report": tune_report,
}


def train(config: dict) -> None:
    MISTAKES[config["which"]]()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--which", choices=MISTAKES, default="wandb-key", help="mistake to make")
    args = parser.parse_args()
    TorchTrainer(
        train,
        train_loop_config=vars(args),
        scaling_config=ScalingConfig(num_workers=1),
        # A retry would fail the same way.
        run_config=mlplatform.run_config("fit", max_failures=0),
    ).fit()


if __name__ == "__main__":
    main()
