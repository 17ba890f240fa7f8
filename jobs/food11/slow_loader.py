"""Diagnose a slow data loader by comparing two training runs, one of which uses loader processes.

    mlplatform submit food11/slow_loader.py -- --num-workers 4
    python food11/slow_loader.py --num-workers 4

The lesson: a processor that is idle during training is waiting for data. Here each photo takes a moment to load, as
from a busy disk, and the network is fast. MLflow's system metrics and the time per epoch show the problem and the fix:
the same training with loader processes. Both runs are children of a third one, which stores a plot and a table made
only from what they logged.
"""

import argparse
import time

import food
import mlflow
import pandas as pd
import torch
from matplotlib.figure import Figure
from mlflow.entities import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

EXPERIMENT = "food11-slow-loader"
# System metrics under MLflow's names; a node without a GPU lacks the second.
WATCHED = ("system/cpu_utilization_percentage", "system/gpu_0_utilization_percentage")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=4, help="data loader processes of the second run")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the photos per run")
    parser.add_argument("--photos", type=int, default=256, help="photos per pass")
    parser.add_argument("--delay", type=float, default=0.03, help="seconds to load one photo")
    parser.add_argument("--size", type=int, default=32, help="height and width of the scaled photos in pixels")
    return parser.parse_args()


class FromASlowDisk(Dataset):
    """Data set of `count` photos, repeated as needed, each delayed by `delay` seconds."""

    def __init__(self, photos: Dataset, count: int, delay: float) -> None:
        self.photos, self.count, self.delay = photos, count, delay

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.delay)
        return self.photos[index % len(self.photos)]


def train(args: argparse.Namespace, num_workers: int) -> Run:
    """Train with this many loader processes, in a child run; return the run."""
    with mlflow.start_run(run_name=f"num_workers={num_workers}", nested=True, log_system_metrics=True) as run:
        mlflow.log_params({**vars(args), "num_workers": num_workers})
        photos = FromASlowDisk(food.dataset("training", args.size), args.photos, args.delay)
        loader = DataLoader(photos, 32, shuffle=True, num_workers=num_workers, persistent_workers=num_workers > 0)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        net = food.network().to(device)
        optimizer = torch.optim.Adam(net.parameters())
        for epoch in range(args.epochs):
            began = asked = time.perf_counter()
            waited = 0.0
            for images, labels in loader:
                waited += time.perf_counter() - asked
                loss = nn.functional.cross_entropy(net(images.to(device)), labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                asked = time.perf_counter()
            took = time.perf_counter() - began
            mlflow.log_metrics({"epoch_time": took, "waiting_share": waited / took}, step=epoch)
            print(f"num_workers={num_workers} epoch {epoch}: {took:.2f} s, {waited:.2f} s waiting for data", flush=True)
    return run


def compare(runs: list[Run]) -> None:
    """Log a table and a plot made from the metric histories of the runs in MLflow."""
    client = mlflow.MlflowClient()
    pictures = Figure(figsize=(9, 7), layout="constrained").subplots(2, 1)
    rows = []
    for run in runs:
        logged = client.get_run(run.info.run_id).data
        row = {"run": run.info.run_name, "num_workers": int(logged.params["num_workers"])}
        for metric in ("epoch_time", "waiting_share", *WATCHED):
            points = client.get_metric_history(run.info.run_id, metric)
            if not points:
                continue
            row[metric] = sum(point.value for point in points) / len(points)
            seconds = [(point.timestamp - run.info.start_time) / 1000 for point in points]
            axes = pictures[0] if metric == "epoch_time" else pictures[1] if metric in WATCHED else None
            if axes is not None:
                axes.plot(seconds, [point.value for point in points], "o-", label=f"{run.info.run_name} {metric}")
        rows.append(row)
    for axes, title in zip(pictures, ("seconds per epoch", "utilization, %"), strict=True):
        axes.set(ylabel=title, xlabel="seconds after the run's start", xlim=(0, None), ylim=(0, None))
        axes.legend()
    mlflow.log_figure(pictures[0].figure, "comparison.png")
    mlflow.log_table(pd.DataFrame(rows), "comparison.json")
    print(pd.DataFrame(rows).to_string(index=False))
    slow, quick = (row["epoch_time"] for row in rows)
    mlflow.log_metric("speedup", slow / quick)
    print(f"Speedup with {rows[1]['num_workers']} loader processes: {slow / quick:.1f}x")


def main() -> None:
    args = arguments()
    mlflow.set_experiment(EXPERIMENT)
    mlflow.set_system_metrics_sampling_interval(1)
    with mlflow.start_run(run_name="comparison"):
        compare([train(args, 0), train(args, args.num_workers)])


if __name__ == "__main__":
    main()
