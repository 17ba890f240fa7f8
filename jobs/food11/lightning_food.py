"""Train the Food-11 network with Lightning, in one or more processes on this machine, optionally with autologging.

    mlplatform submit food11/lightning_food.py -- --autolog --devices 2
    python food11/lightning_food.py --autolog

The lesson: Lightning provides the loops, early stopping and backbone freezing, and starts one process per device
(`--devices`; all GPUs by default). With `--autolog`, MLflow records hyperparameters, the metrics of each epoch and the
model without further code, provided that only one process has a run: rank 0.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from food import dataset, network, trainable
from lightning import pytorch as pl
from lightning.pytorch.callbacks import BackboneFinetuning, EarlyStopping
from torch import nn
from torch.utils.data import DataLoader


def options() -> argparse.ArgumentParser:
    """Command-line options shared by the scripts that train this network."""
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="maximum number of passes over the training photos")
    parser.add_argument("--unfreeze-at", type=int, default=5, help="epoch from which the backbone is trained too")
    parser.add_argument("--patience", type=int, default=5, help="stop after this many epochs without a lower val_loss")
    parser.add_argument("--batch-size", type=int, default=32, help="photos per step and process")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of the last layer")
    parser.add_argument("--dropout", type=float, default=0.2, help="dropout rate before the last layer")
    parser.add_argument("--size", type=int, default=224, help="height and width of the photos in pixels")
    parser.add_argument("--pretrained", action="store_true", help="start from ImageNet's weights")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights")
    return parser


class Food(pl.LightningModule):
    """Network of food.py, with the attribute names (backbone, head) that Lightning's finetuning callback expects."""

    def __init__(self, lr: float, dropout: float, pretrained: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        net = network(pretrained, dropout=dropout)
        self.backbone, self.head = net.features, net.classifier

    def forward(self, photos: torch.Tensor) -> torch.Tensor:
        """Map photos of shape (batch, 3, size, size) to class scores."""
        return self.head(self.backbone(photos).mean((2, 3)))

    def training_step(self, batch, index):
        loss, _ = self.measure(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        self.log("trainable_parameters", float(trainable(self)), on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log_both("val", batch)

    def test_step(self, batch, index):
        self.log_both("test", batch)

    def log_both(self, part: str, batch) -> None:
        loss, accuracy = self.measure(batch)
        self.log_dict({f"{part}_loss": loss, f"{part}_accuracy": accuracy}, sync_dist=True)

    def measure(self, batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss and the accuracy of a batch."""
        photos, labels = batch
        scores = self(photos)
        return nn.functional.cross_entropy(scores, labels), (scores.argmax(1) == labels).float().mean()

    def on_train_end(self):
        sums = self.all_gather(nn.utils.parameters_to_vector(self.parameters()).double().sum())
        if self.trainer.is_global_zero:
            print(f"Sum of the weights on each rank: {json.dumps(sums.reshape(-1).tolist())}", flush=True)

    def configure_optimizers(self):
        # The backbone's parameters are added by the callback when it unfreezes them.
        return torch.optim.Adam(self.head.parameters(), self.hparams.lr)


class Finetuning(BackboneFinetuning):
    """Lightning's finetuning callback, fixed for DDP and for restarts: it freezes later.

    The original freezes before DistributedDataParallel wraps the network, so DDP never averages the backbone's
    gradients and the ranks drift apart. It also unfreezes in one epoch only, which a run resumed later never reaches.
    """

    def setup(self, trainer, pl_module, stage) -> None:
        pass

    def on_train_start(self, trainer, pl_module) -> None:
        if trainer.current_epoch <= self.unfreeze_backbone_at_epoch:
            self.freeze_before_training(pl_module)


STRATEGY = {"find_unused_parameters": True}
"""Arguments of DistributedDataParallel: a frozen backbone has parameters without gradients."""


def trainer(config: dict, *more: pl.Callback, **how) -> pl.Trainer:
    """Trainer with early stopping, backbone finetuning and `more` callbacks; `how` is passed to `pl.Trainer`."""
    return pl.Trainer(
        max_epochs=config["epochs"],
        callbacks=[EarlyStopping("val_loss", patience=config["patience"]), Finetuning(config["unfreeze_at"]), *more],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        **how,
    )


def loader(part: str, config: dict) -> DataLoader:
    """Batches of one split; Lightning gives each rank its shard."""
    return DataLoader(dataset(part, config["size"]), config["batch_size"], shuffle=part == "training")


@contextmanager
def autologged(fitting: pl.Trainer, wanted: bool, **params) -> Iterator[None]:
    """Open one MLflow run for all ranks: Lightning starts this script again for each rank, and only rank 0 opens it."""
    if not wanted or fitting.global_rank:
        yield
        return
    import mlflow

    mlflow.set_experiment("food11-classifier")
    # Otherwise every Lightning checkpoint is uploaded; the final state is logged as the model anyway.
    mlflow.pytorch.autolog(checkpoint=False)
    mlflow.set_system_metrics_sampling_interval(2)
    with mlflow.start_run(log_system_metrics=True) as run:
        # Autologging misses these: MLflow 3.17 detects EarlyStopping from `pytorch_lightning`, not from `lightning`.
        mlflow.log_params(params)
        yield
    print(f"Run: {run.info.run_id}")


def main() -> None:
    parser = options()
    parser.description = __doc__
    parser.add_argument(
        "--devices", default="auto", help="processes, on one GPU each or all on CPUs; default: one per GPU"
    )
    parser.add_argument("--autolog", action="store_true", help="record the training with MLflow autologging")
    args = parser.parse_args()
    config = vars(args)

    pl.seed_everything(args.seed)
    strategy = pl.strategies.DDPStrategy(**STRATEGY)
    devices = args.devices if args.devices == "auto" else int(args.devices)
    # With fewer GPUs than processes, all processes use CPUs.
    enough = devices == "auto" or devices <= torch.cuda.device_count()
    fitting = trainer(config, accelerator="auto" if enough else "cpu", devices=devices, strategy=strategy)
    with autologged(fitting, args.autolog, patience=args.patience, unfreeze_at=args.unfreeze_at, size=args.size):
        model = Food(args.lr, args.dropout, args.pretrained)
        fitting.fit(model, loader("training", config), loader("validation", config))
        (tested,) = fitting.test(model, loader("evaluation", config), verbose=False)

    if fitting.is_global_zero:
        stop = "stopped early" if fitting.current_epoch < args.epochs else "ran to its end"
        print(f"Training {stop} after {fitting.current_epoch} epochs on {fitting.world_size} processes")
        print(f"Test: {json.dumps(tested)}")


if __name__ == "__main__":
    main()
