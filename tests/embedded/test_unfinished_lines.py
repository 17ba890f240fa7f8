"""Progress bars and other lines without their end in the log of a running job, and as the command line follows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from waiting import wait_for

from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings

BARS = """
import pathlib, sys, time

folder = pathlib.Path(sys.argv[1])

def pause(name):
    (folder / f"{name} is shown").touch()
    while not (folder / f"{name} was seen").exists():
        time.sleep(0.02)

print("Loading weights", end="", flush=True)
pause("fragment")
print(" ... done", flush=True)

from tqdm import tqdm

for epoch in tqdm(range(3), desc="epoch", mininterval=0):
    for step in tqdm(range(50), desc="step", mininterval=0, leave=False):
        if (epoch, step) == (1, 30):
            pause("tqdm")

from rich.console import Console
from rich.progress import Progress

with Progress(console=Console(force_terminal=True, width=60)) as progress:
    tasks = [progress.add_task(name, total=200) for name in ("copy", "check")]
    for step in range(200):
        for task in tasks:
            progress.update(task, advance=1, refresh=True)
        if step == 99:
            pause("rich")

import lightning, torch
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.demos.boring_classes import BoringModel

class Model(BoringModel):
    def training_step(self, batch, index):
        if index == 40:
            pause("lightning")
        return super().training_step(batch, index)

lightning.Trainer(
    max_epochs=1, limit_train_batches=60, limit_val_batches=30, accelerator="cpu", logger=False,
    enable_checkpointing=False, callbacks=[TQDMProgressBar(refresh_rate=1)],
).fit(Model())
print("after the bars")
"""

STATES = {
    "fragment": r"Loading weights",
    "tqdm": r"step: +60%.*30/50",
    "rich": r"check .* 50%",
    "lightning": r"Epoch 0:.* 40/60",
}


@pytest.fixture(scope="module")
def log(reached: Settings, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The log of an ended job that has drawn bars, each of which was seen while it stood still."""
    package, folder = tmp_path_factory.mktemp("package"), tmp_path_factory.mktemp("folder")
    (package / "bars.py").write_text(BARS)
    with Jobs(reached) as jobs:
        job_id = jobs.submit(["python", "bars.py", str(folder)], package)
        output = folder / "followed"

        def followed() -> str:
            return output.read_bytes().decode()  # not as text, which would take carriage returns for ends of lines

        with output.open("wb") as file:
            command = [sys.executable, "-m", "mlplatform", "logs", "-f", job_id]
            follower = subprocess.Popen(command, stdout=file, env={**os.environ, **reached.environment()})
        for name, state in STATES.items():
            wait_for(lambda name=name: (folder / f"{name} is shown").exists(), f"the job to show {name}")
            for read in (lambda: jobs.logs(job_id), followed):
                last = rf"{state}[^\r\n]*$"
                wait_for(lambda read=read, last=last: re.search(last, read()), f"{name} in the log", seconds=8)
            (folder / f"{name} was seen").touch()
        assert jobs.wait(job_id, 120).status == "SUCCEEDED"
        assert follower.wait(30) == 0
        text = jobs.logs(job_id)
    assert [line.rpartition("\r")[2] for line in followed().split("\n")] == text.split("\n")
    return text


def test_last_states_of_bars_are_kept(log: str) -> None:
    assert "\nLoading weights ... done\n" in log
    assert len(re.findall(r"^epoch: 100%.*3/3", log, re.MULTILINE)) == 1
    assert re.findall(r"^(copy|check) .*100%", log, re.MULTILINE) == ["copy", "check"]
    assert re.search(r"^Epoch 0: 100%.*60/60 \[[^\]]*\]$", log, re.MULTILINE)


def test_bars_do_not_flood_log(log: str) -> None:
    assert log.endswith("\nafter the bars\n")
    assert sum("%" in line for line in log.splitlines()) <= 12, log
