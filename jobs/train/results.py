"""Read the results of a training run: metrics, checkpoints and errors; load a checkpoint and predict with it.

    mlplatform submit train/results.py -- --epochs 4
    ray job submit --working-dir train -- python results.py --epochs 4

The lesson: `fit()` returns a `Result` with the reports of the kept checkpoints only. `mlplatform.history` has every
report, including those of runs without checkpoints and of failed runs. A failed `fit()` raises, and the error has the
exception of each rank. Also shown: `TorchConfig` sets the backend and timeout of the process group, `prepare_model` and
`prepare_data_loader` make a training loop distributed, and the global batch is the batch per rank times the number of
ranks.
"""

import argparse
import json
import tempfile

import ray.train
import torch
from ray.train import Checkpoint, Result, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mlplatform

METRIC = "val_accuracy"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4, help="passes over the training images")
    parser.add_argument("--workers", type=int, default=2, help="training processes")
    parser.add_argument("--global-batch", type=int, default=64, help="images per step over all workers")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker one GPU")
    return parser.parse_args()


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Training and validation sets of 1,497 and 300 images."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images, targets = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
    return TensorDataset(images[300:], targets[300:]), TensorDataset(images[:300], targets[:300])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    images, labels = data.tensors
    with torch.inference_mode():
        return (model(images).argmax(1) == labels).float().mean().item()


def train(config: dict) -> None:
    """Training function that runs on each worker; resumes from its last checkpoint."""
    ranks = ray.train.get_context().get_world_size()
    if ray.train.get_context().get_world_rank() == 0:
        print(f"Process group backend: {torch.distributed.get_backend()}", flush=True)
    training, validation = digits()
    torch.manual_seed(0)
    # prepare_data_loader gives each rank its shard of every epoch, with batches already on its device.
    loader = DataLoader(training, batch_size=config["global_batch"] // ranks, shuffle=True)
    loader = prepare_data_loader(loader)
    model, first = network(), 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        first = state["epoch"] + 1
    model = prepare_model(model)
    print(f"Prepared: {type(model).__name__} on {next(model.parameters()).device}", flush=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(first, config["epochs"]):
        if ranks > 1:
            loader.sampler.set_epoch(epoch)
        steps = 0
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        plain = network()
        # With more than one rank, the model is wrapped in DDP.
        plain.load_state_dict(getattr(model, "module", model).state_dict())
        metrics = {"epoch": epoch, "steps": steps, METRIC: accuracy(plain, validation)}
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save({"model": plain.state_dict(), "epoch": epoch}, f"{folder}/state.pt")
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)


def fail(config: dict) -> None:
    """Training function that reports twice without a checkpoint; then its last rank raises."""
    context = ray.train.get_context()
    for epoch in range(2):
        ray.train.report({"epoch": epoch, "loss": 1 / (epoch + 1)})
    # A failure ends the run at once; every rank's reports have arrived by then.
    torch.distributed.barrier()
    if context.get_world_rank() == context.get_world_size() - 1:
        raise ValueError("This rank fails on purpose.")


def show(result: Result) -> None:
    """Print every field of a result."""
    kept = [metrics["epoch"] for _, metrics in result.best_checkpoints]
    print(f"Metrics of the last checkpoint: {json.dumps(result.metrics)}")
    print(f"Epochs whose checkpoints were kept: {json.dumps(sorted(kept))}")
    print(f"Table of the kept checkpoints: {result.metrics_dataframe.to_json(orient='records')}")
    print(f"Last checkpoint: {result.checkpoint.path}")
    print(f"Folder: {result.path}")
    print(f"Error: {json.dumps(result.error)}")


def best_network(result: Result) -> nn.Module:
    """Network of the best kept checkpoint, ready to predict."""
    model = network()
    with result.get_best_checkpoint(METRIC, "max").as_directory() as folder:
        model.load_state_dict(torch.load(f"{folder}/state.pt", map_location="cpu", weights_only=True)["model"])
    return model.eval()


def main() -> None:
    args = arguments()
    scaling = ScalingConfig(num_workers=args.workers, use_gpu=args.use_gpu)
    with mlplatform.job_run(experiment="train", params=vars(args)) as run:
        result = TorchTrainer(
            train,
            train_loop_config=vars(args),
            torch_config=TorchConfig(backend="nccl" if args.use_gpu else "gloo", timeout_s=60),
            scaling_config=scaling,
            run_config=mlplatform.run_config("kept", metric=METRIC, mode="max", num_to_keep=2),
        ).fit()
        show(result)
        print(f"All reports: {json.dumps(mlplatform.history('kept'))}")
        predicted = accuracy(best_network(result), digits()[1])
        print(f"Accuracy of the best checkpoint, predicted in the driver: {json.dumps(predicted)}")

        try:
            TorchTrainer(
                fail,
                train_loop_config={},
                scaling_config=scaling,
                run_config=mlplatform.run_config("failed", max_failures=0),
            ).fit()
        except ray.train.WorkerGroupError as error:
            failures = {rank: str(failure) for rank, failure in error.worker_failures.items()}
            print(f"Failed ranks: {json.dumps(failures)}")
        print(f"Reports of the failed run: {json.dumps(mlplatform.history('failed'))}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()
