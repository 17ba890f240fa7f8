"""Job that writes a metric and an artifact in each step, and resumes at the first step whose metric is missing.

It writes until a file of the test hurries it, and then one step.
"""

import argparse
import itertools
import os
import time
from pathlib import Path

import mlflow

import mlplatform

KILOBYTES = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause", type=float, required=True, help="seconds per step")
    args = parser.parse_args()
    job_id = os.environ["MLPLATFORM_JOB_ID"]
    hurry = Path(f"/shared/hurry-{job_id}")
    with mlplatform.job_run(experiment="writers") as run:
        done = mlflow.MlflowClient().get_metric_history(run.info.run_id, "step")
        for number in itertools.count(len(done)):
            # The artifact first: what the database names has to be in the bucket.
            mlflow.log_text(f"{job_id} {number:06}\n" * (KILOBYTES * 1000 // (len(job_id) + 8)), f"steps/{number}.txt")
            mlflow.log_metric("step", number, step=number)
            print(f"wrote step {number}", flush=True)
            if hurry.exists():
                break
            time.sleep(args.pause)


if __name__ == "__main__":
    main()
