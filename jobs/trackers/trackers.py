"""Track training on two workers with Weights & Biases, Comet or TensorBoard, with or without an account.

    mlplatform submit trackers/trackers.py -- --tracker wandb
    ray job submit --working-dir trackers -- python trackers.py --tracker comet --fail-once

The lesson: only rank 0 logs; otherwise each value would be logged twice. `mlplatform.tracker` configures the tracker's
own client: where to write, and under the job's id, so that a restarted training continues in the same run. With a key
(in the job's environment or in `secrets/`) the client uploads; without one it writes below `/shared`, and the log shows
the command that uploads it later. Points logged offline may be lost when a process is killed, so they are logged again
from the checkpoint. `finish`, `end` and `close` flush everything, because the worker exits when training ends.
"""

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from offline import kept
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

import mlplatform


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tracker", choices=OPEN, default="wandb", help="tracker to use")
    parser.add_argument("--epochs", type=int, default=4, help="passes over the training images")
    parser.add_argument("--fail-once", action="store_true", help="kill rank 0 after its second checkpoint")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker one GPU")
    return parser.parse_args()


Log = Callable[[int, float], None]
Finish = Callable[[], None]


def open_wandb(place: mlplatform.Tracker, config: dict) -> tuple[Log, Finish]:
    import wandb

    # The id is the job's; the name can be chosen.
    run = wandb.init(project="digits", name="one layer", config=config)

    def finish() -> None:
        run.finish()
        wandb.teardown()  # waits for W&B's own process, which writes the files

    return lambda epoch, loss: run.log({"loss": loss}, step=epoch), finish


def open_comet(place: mlplatform.Tracker, config: dict) -> tuple[Log, Finish]:
    import comet_ml

    experiment = comet_ml.start(project_name="digits")
    experiment.log_parameters(config)
    return lambda epoch, loss: experiment.log_metric("loss", loss, step=epoch), experiment.end


def open_tensorboard(place: mlplatform.Tracker, config: dict) -> tuple[Log, Finish]:
    from torch.utils.tensorboard import SummaryWriter

    # Points of an earlier attempt from this step on are replaced.
    writer = SummaryWriter(str(place.folder), purge_step=0)
    return lambda epoch, loss: writer.add_scalar("loss", loss, epoch), writer.close


OPEN = {"wandb": open_wandb, "comet": open_comet, "tensorboard": open_tensorboard}


def train(config: dict) -> dict | None:
    """Training function that runs on each worker; rank 0 returns folder, id and online state of its tracker."""
    import ray.train
    from sklearn.datasets import load_digits

    rank = ray.train.get_context().get_world_rank()
    device = ray.train.torch.get_device()
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels[rank::2] / 16, dtype=torch.float32, device=device)
    targets = torch.tensor(labels[rank::2], device=device)
    model = ray.train.torch.prepare_model(nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    state = {"losses": []}
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt")
        model.load_state_dict(state["model"])
    first_start, losses = not checkpoint, state["losses"]

    place, log, finish = None, None, None
    if rank == 0:
        place = mlplatform.tracker(config["tracker"])
        log, finish = OPEN[config["tracker"]](place, config)
        # An online tracker already has these points.
        for epoch, loss in enumerate([] if place.online else losses):
            log(epoch, loss)

    for epoch in range(len(losses), config["epochs"]):
        loss = nn.functional.cross_entropy(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if log:
            log(epoch, loss.item())
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"losses": losses, "model": model.state_dict()}, f"{folder}/state.pt")
            ray.train.report(
                {"epoch": epoch, "loss": loss.item()},
                checkpoint=ray.train.Checkpoint.from_directory(folder) if rank == 0 else None,
            )
        if config["fail_once"] and first_start and rank == 0 and epoch == 1:
            time.sleep(1)  # until Ray Train has registered the checkpoint
            os.kill(os.getpid(), signal.SIGKILL)
    if finish:
        finish()
    return {**asdict(place), "folder": str(place.folder)} if place else None


def main() -> None:
    args = arguments()
    result = TorchTrainer(
        train,
        train_loop_config=vars(args),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=args.use_gpu),
        run_config=mlplatform.run_config("fit"),
    ).fit()
    place = result.return_value
    print(f"Tracked: {json.dumps(place)}")
    if not place["online"]:
        print(f"Kept offline: {json.dumps(kept(args.tracker, Path(place['folder']), place['id']))}")


if __name__ == "__main__":
    main()
