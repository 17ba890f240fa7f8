"""Readers of the trackers' offline files. Not a lesson itself: the other lessons print their stored points with it."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path


def kept(tracker: str, folder: Path, run_id: str) -> list[dict]:
    """For each file of a run, oldest first: its name, the run id inside it and its points of `loss`."""
    pattern = {
        "wandb": f"wandb/offline-run-*-{run_id}/*.wandb",
        "comet": f"{run_id}*.zip",
        "tensorboard": "events.*",
    }[tracker]
    files = sorted(folder.glob(pattern), key=lambda file: file.stat().st_mtime)
    if tracker == "tensorboard":  # read the whole folder, because later files replace points of earlier ones
        return [{"files": [file.name for file in files], "id": folder.name, "points": list(_tensorboard(folder))}]
    read = {"wandb": _wandb, "comet": _comet}[tracker]
    return [{"file": str(file.relative_to(folder)), **read(file)} for file in files]


def _wandb(file: Path) -> dict:
    """Read with W&B's own command, which prints one record per line, also from the partial file of a killed attempt."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    quiet = {**os.environ, "WANDB_ERROR_REPORTING": "false"}
    printed = subprocess.run(command, env=quiet, stdout=subprocess.PIPE, text=True, check=True).stdout
    records = [json.loads(line) for line in printed.splitlines()]
    runs = [record["run"] for record in records if record["type"] == "run"]
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    points = [[item["_step"], item["loss"]] for item in items if "loss" in item]
    last = runs[-1] if runs else {}
    named = {"project": last.get("project"), "name": last.get("display_name")}
    return {"id": last.get("run_id"), **named, "points": points}


def _comet(file: Path) -> dict:
    with zipfile.ZipFile(file) as archive:
        if "experiment.json" not in archive.namelist():  # a killed attempt: Comet writes this file at the end
            return {"id": None, "points": []}
        messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
        metrics = [message["payload"]["metric"] for message in messages if message["type"] == "metric_msg"]
        return {
            "id": json.loads(archive.read("experiment.json"))["offline_id"],
            "points": [
                [metric["step"], float(metric["metricValue"])] for metric in metrics if metric["metricName"] == "loss"
            ],
        }


def _tensorboard(folder: Path) -> Iterator[list]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return ([event.step, event.value] for event in events.Scalars("loss"))
