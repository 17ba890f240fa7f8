"""Script without platform code: it opens MLflow runs in the driver and in a Ray task, in two experiments."""

import mlflow
import ray


def log(experiment: str, loss: float) -> str:
    mlflow.set_experiment(experiment)
    with mlflow.start_run() as run:
        mlflow.log_metric("loss", loss)
        return run.info.run_id


print("driver's run", log("plain", 1.0), flush=True)
ray.init()
print("task's run", ray.get(ray.remote(num_cpus=0.1)(log).remote("plain elsewhere", 2.0)), flush=True)
