"""Give Lightning its own loggers under Ray Train: MLflow, TensorBoard, Weights & Biases and Comet, as many as you like.

    mlplatform submit trackers/lightning_loggers.py -- --loggers mlflow,wandb
    ray job submit --working-dir trackers -- python lightning_loggers.py --fail-once

The lesson: Lightning's loggers work as they are. `mlplatform.tracker` tells them where to write, under the job's id, so
that a restarted training goes on in the same run. MLflow's logger is given the job's run instead of opening another;
its metrics carry a prefix, because those that are reported stand in that run already. Only rank 0 has loggers. What
fails in Python still reaches `finally`, where what is logged is finished; only a killed process does not.
"""

import argparse
import json
import os
from pathlib import Path

import torch
from offline import kept
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

import mlplatform

LOGGERS = ("mlflow", "tensorboard", "wandb", "comet")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loggers", default=",".join(LOGGERS), help="which, separated by commas")
    parser.add_argument("--epochs", type=int, default=4, help="passes over the training images")
    parser.add_argument("--fail-once", action="store_true", help="raise an error in rank 0 in the third epoch")
    parser.add_argument("--use-gpu", action="store_true", help="one GPU a worker")
    return parser.parse_args()


def loggers(config: dict, places: dict[str, mlplatform.Tracker]) -> list:
    """Lightning's loggers, which need no address and no key."""
    from lightning.pytorch.loggers import CometLogger, MLFlowLogger, TensorBoardLogger, WandbLogger

    make = {
        "mlflow": lambda: MLFlowLogger(run_id=config["run_id"], prefix="lightning"),
        "tensorboard": lambda: TensorBoardLogger(places["tensorboard"].folder, name="", version=""),
        # Without a folder of its own it takes the tracker's; "." would be the job's folder, which goes with the job.
        "wandb": lambda: WandbLogger(project="digits", save_dir=None),
        "comet": lambda: CometLogger(project="digits"),
    }
    return [make[name]() for name in config["loggers"]]


def finish(chosen: list[str], made: list) -> None:
    """Write everything: Lightning leaves the runs of W&B and Comet open, for whoever wants to log more."""
    for name, logger in zip(chosen, made, strict=True):
        if name == "wandb":
            import wandb

            logger.experiment.finish()
            wandb.teardown()  # W&B's own process, which writes the files, may be behind a little
        elif name == "comet":
            logger.experiment.end()


def train(config: dict) -> dict:
    """What each worker runs; rank 0 returns where its trackers have written."""
    import ray.train
    from lightning import pytorch as pl
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
    from sklearn.datasets import load_digits
    from torch.utils.data import DataLoader, TensorDataset

    rank, checkpoint = ray.train.get_context().get_world_rank(), ray.train.get_checkpoint()

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Linear(64, 10)

        def training_step(self, batch, index):
            if config["fail_once"] and not checkpoint and rank == 0 and self.current_epoch == 2:
                raise RuntimeError("This worker fails once, as it was asked to.")
            loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)

    # Comet would log a second time what the other loggers write; its own logger says so too late, after the import.
    os.environ["COMET_DISABLE_AUTO_LOGGING"] = "1"
    chosen = config["loggers"] if rank == 0 else []
    places = {name: mlplatform.tracker(name) for name in chosen if name != "mlflow"}
    made = loggers({**config, "loggers": chosen}, places)
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    trainer = prepare_trainer(
        pl.Trainer(
            max_epochs=config["epochs"],
            strategy=RayDDPStrategy(),
            plugins=[RayLightningEnvironment()],
            callbacks=[RayTrainReportCallback()],
            accelerator="auto" if config["use_gpu"] else "cpu",
            devices="auto",
            logger=made or False,
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    )
    try:
        if checkpoint:
            with checkpoint.as_directory() as folder:
                path = f"{folder}/{RayTrainReportCallback.CHECKPOINT_NAME}"
                trainer.fit(Classifier(), DataLoader(data, 256), ckpt_path=path)
        else:
            trainer.fit(Classifier(), DataLoader(data, 256))
    finally:
        finish(chosen, made)
    return {name: [str(place.folder), place.id, place.online] for name, place in places.items()}


def main() -> None:
    args = arguments()
    with mlplatform.job_run(experiment="digits", params=vars(args)) as run:
        result = TorchTrainer(
            train,
            train_loop_config={
                **vars(args),
                "loggers": args.loggers.split(","),
                "run_id": run.info.run_id if run else None,
            },
            scaling_config=ScalingConfig(num_workers=2, use_gpu=args.use_gpu),
            run_config=mlplatform.run_config("fit"),
        ).fit()
    offline = {
        name: kept(name, Path(folder), run_id)
        for name, (folder, run_id, online) in result.return_value.items()
        if not online
    }
    print(f"Kept offline: {json.dumps(offline)}")


if __name__ == "__main__":
    main()
