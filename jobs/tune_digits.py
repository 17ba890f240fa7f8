"""Tune the learning rate and width of a small network on 1,797 handwritten digits, and register the best model.

    mlplatform submit tune_digits.py -- --trials 8
    ray job submit --working-dir . -- python tune_digits.py --trials 8

The lesson: a trial is a function that reports after each epoch. `tuning.tuner` makes each trial a child run of the
job's MLflow run and lets ASHA stop poor trials early. If the job is killed and restarted with the same job id, the
search continues where it stopped. The best model is logged to the run of its trial.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from ray import tune
from torch import nn

import mlplatform
from mlplatform import tuning

METRIC = "val_accuracy"
MODEL = "digits-tuned"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8, help="combinations of learning rate and width to try")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the training images per trial")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step")
    parser.add_argument("--cpus", type=float, default=1, help="CPUs per trial; 0.5 lets two trials share one")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs per trial; 0.25 lets four trials share one")
    return parser.parse_args()


def network(width: int) -> nn.Module:
    """Network that maps images of shape (batch, 64) to ten class scores."""
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def digits() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Images and labels for training, validation and test: 1,197, 300 and 300, identical in every trial."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images, targets = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    parts = zip(("test", "val", "train"), order.split([300, 300, len(images) - 600]), strict=True)
    return {name: (images[part], targets[part]) for name, part in parts}


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.inference_mode():
        return (model(images).argmax(1) == labels).float().mean().item()


def trial(config: dict) -> None:
    """Train with one combination of settings; a restarted trial resumes from its last checkpoint."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = network(config["width"]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), config["lr"], momentum=0.9)
    data = {name: (images.to(device), labels.to(device)) for name, (images, labels) in digits().items()}
    first = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1

    images, labels = data["train"]
    for epoch in range(first, config["epochs"]):
        for batch in torch.randperm(len(images)).split(config["batch_size"]):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        metrics = {"epoch": epoch, "train_loss": loss.item(), METRIC: accuracy(model, *data["val"])}
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, f"{folder}/state.pt")
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def publish(result: tune.Result, run) -> None:
    """Log the best trial's model to the run of that trial, then register it."""
    import mlflow

    model = network(result.config["width"])
    with result.checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(Path(folder) / "state.pt", map_location="cpu", weights_only=True)["model"])
    images, labels = digits()["test"]
    measured = accuracy(model.eval(), images, labels)
    # The run's start time is the same in every attempt, so a restart does not add a second point.
    mlflow.log_metric("test_accuracy", measured, timestamp=run.info.start_time, run_id=run.info.run_id)

    def log_model(name: str):  # digits.py explains the options
        return mlflow.pytorch.log_model(
            model,
            name=name,
            serialization_format="pt2",
            input_example=images[:4].numpy(),
            pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}"],
        )

    mlplatform.publish_model(MODEL, log_model, run, metric="test_accuracy")


def main() -> None:
    args = arguments()
    with mlplatform.job_run(experiment="digits", params=vars(args)) as run:
        tuner = tuning.tuner(
            tune.with_resources(trial, {"cpu": args.cpus, "gpu": args.gpus}),
            param_space={
                "lr": tune.loguniform(1e-4, 1),
                "width": tune.choice([16, 64, 256]),
                "epochs": args.epochs,
                "batch_size": args.batch_size,
            },
            # With reuse_actors, a process that has already imported torch runs the next trial.
            tune_config=tune.TuneConfig(metric=METRIC, mode="max", num_samples=args.trials, reuse_actors=True),
        )
        results = tuner.fit()

        result, child = tuning.best(results)
        print(f"Best: lr {result.config['lr']:.4g}, width {result.config['width']}: {result.metrics[METRIC]:.4f}")
        if run:
            publish(result, child)
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
