"""Log a run, then try at MLflow what a job may not do with another's run; print the status of each try as JSON."""

import json
import sys

import httpx
import mlflow

import mlplatform
from mlplatform.settings.accounts import TrackingAccount

with mlplatform.job_run(experiment="owners") as run:
    mlflow.log_metric("loss", 0.5)
    mlflow.log_text("mine", "note.txt")
    run_id = mlflow.active_run().info.run_id
if len(sys.argv) == 1:
    sys.exit()
others_run = sys.argv[1]

client = httpx.Client(base_url=mlflow.get_tracking_uri(), auth=TrackingAccount.load().login)
others = mlflow.get_run(others_run).info
there = others.artifact_uri.removeprefix("mlflow-artifacts:/")


def post(path, **values):
    return client.post(f"/api/2.0/mlflow/{path}", json=values).status_code


files = "/api/2.0/mlflow-artifacts/artifacts"
tries = {
    "delete its run": post("runs/delete", run_id=run_id),
    "delete another's run": post("runs/delete", run_id=others_run),
    "change another's run": post("runs/set-tag", run_id=others_run, key="note", value="forged"),
    "change another's file": client.put(f"{files}/{there}/note.txt", content=b"forged").status_code,
    "delete its file": client.delete(f"{files}/{others.experiment_id}/{run_id}/artifacts/note.txt").status_code,
    "delete the experiment": post("experiments/delete", experiment_id=others.experiment_id),
    "create a user": post("users/create", username="mallory", password="mallory-mallory"),
}
print("tries:", json.dumps(tries))
