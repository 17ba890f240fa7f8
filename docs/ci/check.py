"""Check of a run in CI: its accuracy, and the model version that it registered. Needs `pip install mlflow-skinny`."""

import os
import sys

import mlflow

[run] = mlflow.search_runs(
    experiment_names=["digits"],
    filter_string=f"tags.`mlplatform.job_id` = '{os.environ['JOB_ID']}'",
    output_format="list",
)
if run.data.metrics["val_accuracy"] < 0.9:
    sys.exit(f"The accuracy is {run.data.metrics['val_accuracy']:.3f}: below 0.9, this model is not released.")
[version] = mlflow.MlflowClient().search_model_versions(f"run_id = '{run.info.run_id}'")
print(f"{version.name} {version.version} is good.")
