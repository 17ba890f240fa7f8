"""Use Lightning's own loggers with Ray Train: any of MLflow, TensorBoard, Weights & Biases and Comet.

    mlplatform submit trackers/lightning_loggers.py -- --loggers mlflow,wandb
    ray job submit --working-dir trackers -- python lightning_loggers.py --fail-once

The lesson: Lightning's loggers work unmodified. `mlplatform.tracker` configures where they write, under the job's id,
so that a restarted training continues in the same run. MLflow's logger uses the job's run instead of opening another
one; its metrics have a prefix, because that run already contains the reported metrics. Only rank 0 has loggers. They
are flushed and closed in `finally`, which runs after any Python error, but not if the process is killed.
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
    parser.add_argument("--loggers", default=",".join(LOGGERS), help="loggers to use, separated by commas")
    parser.add_argument("--epochs", type=int, default=4, help="passes over the training images")
    parser.add_argument("--fail-once", action="store_true", help="raise an error in rank 0 in the third epoch, once")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker one GPU")
    return parser.parse_args()


def loggers(config: dict, places: dict[str, mlplatform.Tracker]) -> list:
    """Create the chosen Lightning loggers; none of them needs an address or a key here."""
    from lightning.pytorch.loggers import CometLogger, MLFlowLogger, TensorBoardLogger, WandbLogger

    make = {
        "mlflow": lambda: MLFlowLogger(run_id=config["run_id"], prefix="lightning"),
        "tensorboard": lambda: TensorBoardLogger(places["tensorboard"].folder, name="", version=""),
        # save_dir=None selects the tracker's folder; "." would be the job's working folder, deleted with the job.
        "wandb": lambda: WandbLogger(project="digits", save_dir=None),
        "comet": lambda: CometLogger(project="digits"),
    }
    return [make[name]() for name in config["loggers"]]


def finish(chosen: list[str], made: list) -> None:
    """Flush and close: Lightning leaves the runs of W&B and Comet open for further logging."""
    for name, logger in zip(chosen, made, strict=True):
        if name == "wandb":
            import wandb

            logger.experiment.finish()
            wandb.teardown()  # waits for W&B's own process, which writes the files
        elif name == "comet":
            logger.experiment.end()


def train(config: dict) -> dict:
    """Training function that runs on each worker; rank 0 returns folder, id and online state of its trackers."""
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
                raise RuntimeError("This worker fails once, as requested with --fail-once.")
            loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)

    # Comet would also record what the other loggers write. Its own logger disables this too late, after the import.
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
        with mlplatform.resume_path(checkpoint, RayTrainReportCallback.CHECKPOINT_NAME) as path:
            trainer.fit(Classifier(), DataLoader(data, 256), ckpt_path=path)
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
