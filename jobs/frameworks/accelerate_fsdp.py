"""Train a classifier with Hugging Face Accelerate, configured on every worker by an `accelerate config` file.

    mlplatform submit frameworks/accelerate_fsdp.py -- --epochs 8 --die-at-epoch 4
    mlplatform submit frameworks/accelerate_fsdp.py -- --config your.yaml

The lesson: `accelerate launch` is not needed. Ray has started the workers and set their ranks, so `Accelerator` finds
the process group ready. Settings for machines, ports and processes in the configuration file are therefore ignored, and
the log lists them; settings for training (FSDP, mixed precision) are applied. `accelerate.yaml` comes from two other
machines; with it, each worker here holds its shard of the weights and writes its shard of each checkpoint.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import ray.train
import torch
import yaml
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

import mlplatform

METRIC = "val_accuracy"
KINDS = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP")
TOPOLOGY = {
    *("num_machines", "num_processes", "machine_rank", "main_process_ip", "main_process_port", "gpu_ids"),
    *("rdzv_backend", "same_network", "enable_cpu_affinity", "mpirun_config", "main_training_function"),
}
"""Configuration keys for where to train, which Ray decides."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--config", type=Path, default=Path(__file__).with_name("accelerate.yaml"), help="its settings file"
    )
    parser.add_argument("--epochs", type=int, default=8, help="passes over the training images")
    parser.add_argument("--workers", type=int, default=2, help="training processes")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and worker")
    parser.add_argument("--die-at-epoch", type=int, help="kill a worker once before this epoch (2 or later)")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker one GPU")
    return parser.parse_args()


def settings_of(file: Path) -> dict:
    """Load a configuration file without the keys that Ray decides; print the keys that were ignored."""
    settings = yaml.safe_load(file.read_text())
    if settings["distributed_type"] not in KINDS:
        raise SystemExit(
            f"{file.name}: unsupported distributed_type {settings['distributed_type']}; use {', '.join(KINDS)}."
        )
    tables = [settings, *(table for table in settings.values() if isinstance(table, dict))]
    gone = {key: table.pop(key) for table in tables for key in TOPOLOGY & set(table)}
    if gone:
        given = ", ".join(f"{key}={value}" for key, value in sorted(gone.items()))
        print(f"{file.name}: ignored {given}, because Ray has placed and connected the workers.")
    return settings


def accelerator_of(settings: dict, use_gpu: bool):
    """Create the Accelerator that the settings describe."""
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin, PartialState

    precision = settings.get("mixed_precision", "no")
    if settings["distributed_type"] != "FSDP":
        return Accelerator(cpu=not use_gpu, mixed_precision=precision)
    renamed = {"transformer_layer_cls_to_wrap": "transformer_cls_names_to_wrap", "offload_params": "cpu_offload"}
    named = {key.removeprefix("fsdp_"): value for key, value in settings["fsdp_config"].items()}
    options = {renamed.get(key, key): value for key, value in named.items()}
    plugin = FullyShardedDataParallelPlugin(fsdp_version=options.pop("version", 1), **options)
    accelerator = Accelerator(cpu=not use_gpu, mixed_precision=precision, fsdp_plugin=plugin)
    if accelerator.distributed_type == DistributedType.MULTI_CPU:
        # Accelerate supports FSDP on GPUs and similar devices only. PyTorch also supports it on CPUs, over gloo, where
        # a configuration is cheap to try. These two lines make Accelerate use it there.
        PartialState().distributed_type = accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    return accelerator


def digits() -> dict[str, torch.utils.data.TensorDataset]:
    """Training and validation sets of 1,497 and 300 images of handwritten digits, identical on every worker."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images, targets = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    parts = {"val": order[:300], "train": order[300:]}
    return {name: torch.utils.data.TensorDataset(images[part], targets[part]) for name, part in parts.items()}


def held(model: nn.Module) -> int:
    """Number of weights that this process holds."""
    return sum(getattr(weights, "_local_tensor", weights).numel() for weights in model.parameters())


def train(config: dict) -> dict:
    """Training function that runs on each worker: an ordinary Accelerate script that also resumes and reports."""
    accelerator = accelerator_of(config["settings"], config["use_gpu"])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    data = digits()
    loaders = [torch.utils.data.DataLoader(data[part], config["batch_size"], shuffle=True) for part in ("train", "val")]
    all_weights = held(model)
    model, optimizer, training, validation = accelerator.prepare(model, optimizer, *loaders)
    kind = accelerator.distributed_type.value
    print(
        f"Rank {accelerator.process_index} of {accelerator.num_processes}: {kind} on {accelerator.device}, "
        f"holds {held(model)} of {all_weights} weights."
    )

    first = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            accelerator.load_state(folder)
            first = json.loads(Path(folder, "epoch.json").read_text()) + 1
        print(f"Resuming at epoch {first}.")
    for epoch in range(first, config["epochs"]):
        # A report is certain to have arrived once the next one was accepted, so not before epoch 2.
        if epoch == config["die_at_epoch"] and not first and accelerator.is_main_process:
            print(f"Killing this worker before epoch {epoch}.", flush=True)
            os._exit(1)
        model.train()
        for images, labels in training:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            pairs = [accelerator.gather_for_metrics((model(images).argmax(1), labels)) for images, labels in validation]
        right = [(guesses == labels).float() for guesses, labels in pairs]
        metrics = {"epoch": epoch, "train_loss": loss.item(), METRIC: torch.cat(right).mean().item()}
        with tempfile.TemporaryDirectory() as folder:
            # Each rank writes its shard, and Ray merges the shards into one checkpoint.
            accelerator.save_state(folder)
            Path(folder, "epoch.json").write_text(json.dumps(epoch))
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
    return {"kind": kind, "held": held(model), "weights": all_weights, "first_epoch": first}


def main() -> None:
    args = arguments()
    config = {**vars(args), "config": str(args.config)}
    settings = settings_of(args.config)
    with mlplatform.job_run(experiment="frameworks", params=config) as run:
        trainer = TorchTrainer(
            train,
            train_loop_config={**config, "settings": settings},
            scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=args.use_gpu),
            run_config=mlplatform.run_config("fit", metric=METRIC),
        )
        result = trainer.fit()
        print(f"Trained: {json.dumps({**result.return_value, METRIC: result.metrics[METRIC]})}")
        print(f"Checkpoints: {mlplatform.checkpoint_uri('fit')}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
