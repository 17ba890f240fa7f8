"""Log a run and register its model, then try at MLflow what no job may do; print the status of each try as JSON."""

import json

import httpx
import mlflow

import mlplatform
from mlplatform.mlflow_rest import own_account

with mlplatform.job_run(experiment="tries") as run:
    mlflow.log_metric("loss", 0.5)
    mlflow.log_text("mine", "model/note.txt")
    run_id = mlflow.active_run().info.run_id
    experiment_id = mlflow.active_run().info.experiment_id

login = own_account(mlflow.get_tracking_uri()).login
client = httpx.Client(base_url=f"{mlflow.get_tracking_uri()}/api/2.0/mlflow/", auth=login)


def send(method, path, **values):
    return client.request(method, path, json=values).status_code


own = {"username": login[0], "password": "of-a-job-of-mine", "current_password": login[1]}
tries = {
    "delete the experiment": send("POST", "experiments/delete", experiment_id=experiment_id),
    "delete a model": send("DELETE", "registered-models/delete", name="none"),
    "delete a version": send("DELETE", "model-versions/delete", name="none", version="1"),
    "create a user": send("POST", "users/create", username="mallory", password="mallory-mallory"),
    "change its password": send("PATCH", "users/update-password", **own),
    "list users": send("GET", "users/list"),
}
print("tries:", json.dumps(tries))
