"""Track a job in an MLflow other than the platform's: a folder, another server or Databricks.

    mlplatform submit trackers/mlflow_elsewhere.py --env MLFLOW_ALLOW_FILE_STORE=true -- --files
    mlplatform submit trackers/mlflow_elsewhere.py --env MLFLOW_TRACKING_URI=https://mlflow.example.org
    mlplatform submit trackers/mlflow_elsewhere.py --env MLFLOW_TRACKING_URI=databricks \\
        --env DATABRICKS_CONFIG_FILE=/shared/databrickscfg

The lesson: each job can set its own tracking address, and every worker uses it. MLflow's file store must be enabled
(MLFLOW_ALLOW_FILE_STORE) and needs a folder that all nodes share. Pass the account of another server as
MLFLOW_TRACKING_TOKEN; the platform's own account is not sent there. For Databricks, copy the file that `databricks
configure` writes to `/shared`: workers do not have your home folder. One job is one run on every server.
"""

import argparse
import json

import mlflow
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

import mlplatform


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--files", action="store_true", help="write MLflow's file store to `mlruns` in the shared folder"
    )
    parser.add_argument("--epochs", type=int, default=3, help="passes over the training images")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker one GPU")
    return parser.parse_args()


def train(config: dict) -> None:
    """Training function that runs on each worker; its reports and rank 0's own metrics go to the same run."""
    import ray.train
    from sklearn.datasets import load_digits

    device = ray.train.torch.get_device()
    rank = ray.train.get_context().get_world_rank()
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels[rank::2] / 16, dtype=torch.float32, device=device)
    targets = torch.tensor(labels[rank::2], device=device)
    model = ray.train.torch.prepare_model(nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    # Not needed, because the platform passes both on; scripts for other clusters do this.
    mlflow.set_tracking_uri(config["address"])
    mlflow.set_experiment(experiment_id=config["experiment_id"])
    # In rank 0 this is the job's run; other ranks get a scratch run that is discarded, so nothing is logged twice.
    with mlplatform.job_run():
        for epoch in range(config["epochs"]):
            loss = nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ray.train.report({"epoch": epoch, "loss": loss.item()})
            mlflow.log_metric("accuracy", (model(images).argmax(1) == targets).float().mean().item(), step=epoch)


def main() -> None:
    args, platform = arguments(), mlplatform.Settings.load()
    if args.files:
        mlflow.set_tracking_uri(f"file:{platform.shared_folder / 'mlruns'}")
    with mlplatform.job_run(experiment="elsewhere", params=vars(args)) as run:
        TorchTrainer(
            train,
            train_loop_config={
                **vars(args),
                "address": mlflow.get_tracking_uri(),
                "experiment_id": run.info.experiment_id,
            },
            scaling_config=ScalingConfig(num_workers=2, use_gpu=args.use_gpu),
            run_config=mlplatform.run_config("fit"),
        ).fit()

    # Read back as anyone with the folder, or with an account on the server, would.
    client = mlflow.MlflowClient()
    kept = client.search_runs([run.info.experiment_id], f"tags.`mlplatform.job_id` = '{platform.job_id}'")
    points = {
        metric: [[point.step, point.value] for point in client.get_metric_history(run.info.run_id, metric)]
        for metric in ("loss", "accuracy")
    }
    print(f"Tracked in {mlflow.get_tracking_uri()}")
    print(f"Kept: {json.dumps({'runs': [[one.info.run_id, one.info.status] for one in kept], 'points': points})}")


if __name__ == "__main__":
    main()
