"""Train a small convolutional network on 1,797 handwritten digits, on any number of workers.

    mlplatform submit digits.py -- --epochs 8
    ray job submit --working-dir . -- python digits.py --epochs 8

The lesson: nothing below names an address, a bucket or a password. `job_run` opens the job's MLflow run. `run_config`
tells Ray Train where to store checkpoints, and logs what the workers report to that run. Kill the job at any point and
restart it with the same job id: it resumes from its last checkpoint, in the same run.
"""

import argparse
import importlib
import threading

import torch
from ray.train import Result, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

import mlplatform

METRIC = "val_accuracy"
MODEL = "digits"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8, help="passes over the training images")
    parser.add_argument("--workers", type=int, default=2, help="training processes")
    parser.add_argument("--lr", type=float, default=4e-3, help="maximum learning rate of the one-cycle schedule")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and worker")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker one GPU")
    return parser.parse_args()


def network() -> nn.Module:
    """Network that maps images of shape (batch, 1, 8, 8) to ten class scores."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def digits() -> dict[str, torch.utils.data.TensorDataset]:
    """Training, validation and test sets: 1,197, 300 and 300 images, identical on every worker and in every attempt."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    parts = dict(zip(("test", "val", "train"), order.split([300, 300, len(images) - 600]), strict=True))
    targets = torch.tensor(labels)
    return {name: torch.utils.data.TensorDataset(images[part], targets[part]) for name, part in parts.items()}


def train(config: dict) -> None:
    """Training function that runs on each worker. It imports Lightning itself, because only the workers need it."""
    import ray.train
    from lightning import pytorch as pl
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
    from torch.utils.data import DataLoader

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch, index):
            loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            self.log("train_loss", loss, on_epoch=True, on_step=False, sync_dist=True)
            return loss

        def validation_step(self, batch, index):
            scores = self.network(batch[0])
            self.log("val_loss", nn.functional.cross_entropy(scores, batch[1]), sync_dist=True)
            self.log(METRIC, (scores.argmax(1) == batch[1]).float().mean(), sync_dist=True)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=config["lr"])
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, config["lr"], total_steps=int(self.trainer.estimated_stepping_batches)
            )
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    pl.seed_everything(config["seed"])
    data = digits()
    trainer = prepare_trainer(
        pl.Trainer(
            max_epochs=config["epochs"],
            strategy=RayDDPStrategy(),
            plugins=[RayLightningEnvironment()],
            callbacks=[RayTrainReportCallback()],
            accelerator="auto" if config["use_gpu"] else "cpu",
            devices="auto",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
    )
    loaders = (
        DataLoader(data["train"], config["batch_size"], shuffle=True),
        DataLoader(data["val"], config["batch_size"]),
    )
    with mlplatform.resume_path(ray.train.get_checkpoint(), RayTrainReportCallback.CHECKPOINT_NAME) as path:
        trainer.fit(Classifier(), *loaders, ckpt_path=path)


def best_network(result: Result) -> nn.Module:
    """Network of the checkpoint with the highest validation accuracy."""
    with result.get_best_checkpoint(METRIC, "max").as_directory() as folder:
        state = torch.load(f"{folder}/checkpoint.ckpt", map_location="cpu", weights_only=True)["state_dict"]
    best = network()
    best.load_state_dict({name.removeprefix("network."): tensor for name, tensor in state.items()})
    return best.eval()


def publish(run, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, guesses: torch.Tensor) -> None:
    """Log the test accuracy, the confusion matrix and the model; then register the model."""
    import mlflow

    accuracy = (guesses == labels).float().mean().item()
    # The run's start time is the same in every attempt, so a restart does not add a second point.
    mlflow.log_metric("test_accuracy", accuracy, timestamp=run.info.start_time)
    mlflow.log_figure(confusion_matrix(labels, guesses, accuracy), "confusion_matrix.png")

    def log_model(name: str):
        # A traced graph ("pt2") loads without this file and, unlike a pickle, executes no code. The requirements are
        # listed here because inferring them starts another Python process that imports torch.
        return mlflow.pytorch.log_model(
            model,
            name=name,
            serialization_format="pt2",
            input_example=images[:4].numpy(),
            pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}"],
        )

    # A restarted job does not log its model again.
    mlplatform.publish_model(MODEL, log_model, run, metric="test_accuracy")


def confusion_matrix(labels: torch.Tensor, guesses: torch.Tensor, accuracy: float):
    """Plot of predicted against true digits."""
    from matplotlib.figure import Figure

    counts = torch.zeros(10, 10, dtype=torch.int64).index_put_((labels, guesses), torch.tensor(1), accumulate=True)
    figure = Figure(figsize=(5, 5))
    axes = figure.subplots()
    axes.imshow(counts.numpy(), cmap="Blues")
    axes.set(xlabel="predicted", ylabel="true", xticks=range(10), yticks=range(10), title=f"accuracy {accuracy:.4f}")
    for row, column in counts.nonzero().tolist():
        axes.text(column, row, int(counts[row, column]), ha="center", va="center", color="orange")
    return figure


def main() -> None:
    args = arguments()
    with mlplatform.job_run(experiment="digits", params=vars(args)) as run:
        trainer = TorchTrainer(
            train,
            train_loop_config=vars(args),
            scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=args.use_gpu),
            run_config=mlplatform.run_config("fit", metric=METRIC, mode="max"),
        )
        if run:
            # Importing it takes 10 s (it imports Lightning) and a core is idle while the workers start.
            threading.Thread(target=importlib.import_module, args=["mlflow.pytorch"]).start()
        result = trainer.fit()

        model = best_network(result)
        images, labels = digits()["test"].tensors
        with torch.inference_mode():
            guesses = model(images).argmax(1)
        print(f"Test accuracy: {(guesses == labels).float().mean():.4f}")
        print(f"Checkpoints: {mlplatform.checkpoint_uri('fit')}")
        if run:
            publish(run, model, images, labels, guesses)
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
