"""Make the mistakes that trackers and reports invite, one at a time, to see what the platform answers.

    mlplatform submit trackers/errors.py -- --which wandb-key
    ray job submit --working-dir trackers -- python errors.py --which tune-report

The lesson: a worker is another machine. What stands in your home folder (a login, a configuration file) is not there;
it has to come with the job's environment, with a secret of the stack, or through `/shared`. And inside a training
function only `ray.train.report` is heard. The job fails on purpose, with a sentence in its log that names the fix.
"""

import argparse
import os

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

import mlplatform


def wandb_key() -> None:
    """Online without a key; the one of your own login is on your machine alone."""
    os.environ["WANDB_MODE"] = "online"
    mlplatform.tracker("wandb")


def comet_key() -> None:
    os.environ["COMET_START_ONLINE"] = "true"
    mlplatform.tracker("comet")


def databricks_file() -> None:
    """A configuration file that only exists where it was written."""
    import mlflow

    os.environ["DATABRICKS_CONFIG_FILE"] = "/nowhere/databrickscfg"
    mlflow.set_tracking_uri("databricks")
    with mlplatform.job_run():
        mlflow.log_metric("loss", 1.0)


def tune_report() -> None:
    """Tune's own report, in a training that Tune did not start."""
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
    parser.add_argument("--which", choices=MISTAKES, default="wandb-key", help="the mistake")
    args = parser.parse_args()
    TorchTrainer(
        train,
        train_loop_config=vars(args),
        scaling_config=ScalingConfig(num_workers=1),
        # Trying again would not help.
        run_config=mlplatform.run_config("fit", max_failures=0),
    ).fit()


if __name__ == "__main__":
    main()
