"""What trackers have left in files, read back: no lesson by itself, but how the others show what they kept."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

BLOCK, HEADER = 32768, 7


def kept(tracker: str, folder: Path, run_id: str) -> list[dict]:
    """For each file of a run, in the order of writing: its name, the id that stands in it and its points of `loss`."""
    pattern = {
        "wandb": f"wandb/offline-run-*-{run_id}/*.wandb",
        "comet": f"{run_id}*.zip",
        "tensorboard": "events.*",
    }[tracker]
    files = sorted(folder.glob(pattern), key=lambda file: file.stat().st_mtime)
    if tracker == "tensorboard":  # its reader takes the folder, because files replace each other's points
        return [{"files": [file.name for file in files], "id": folder.name, "points": list(_tensorboard(folder))}]
    read = {"wandb": _wandb, "comet": _comet}[tracker]
    return [{"file": str(file.relative_to(folder)), **read(file)} for file in files]


def _wandb(file: Path) -> dict:
    """Records of W&B's protocol in blocks of 32 kB, each part with 4 bytes of checksum, 2 of length and 1 of kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, found = file.read_bytes(), {"id": None, "points": []}
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:  # too little room for a header: the block's rest is empty
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record, parts = Record.FromString(parts), b""
            if record.HasField("run"):
                found["id"] = record.run.run_id
            values = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            if "loss" in values:
                found["points"].append([int(values["_step"]), float(values["loss"])])
    return found


def _comet(file: Path) -> dict:
    with zipfile.ZipFile(file) as archive:
        if "experiment.json" not in archive.namelist():  # of an attempt that was killed: Comet writes it at the end
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
