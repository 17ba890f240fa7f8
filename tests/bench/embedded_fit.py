"""Compare the embedded platform with what it is built on, without Docker: a small job, and the whole demo.

Run `.venv/bin/python tests/bench/embedded_fit.py`. It starts a platform of its own, and removes it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Row, interleaved, table, write
from rich.console import Console

from mlplatform.client.jobs import Jobs
from mlplatform.local.instance import Home
from mlplatform.local.platform import LocalPlatform

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / ".bench" / "embedded.json"
TEMPLATE_SECONDS = 120.0


def wait_for_template(platform: LocalPlatform) -> None:
    """Wait until drivers can start warm."""
    instance = Home(platform.home).load()
    assert instance
    socket = Path(instance.ray_folder) / "warm" / "driver.sock"
    deadline = time.monotonic() + TEMPLATE_SECONDS
    while not socket.exists():
        if time.monotonic() > deadline:
            sys.exit(f"Warm start is not ready after {TEMPLATE_SECONDS:.0f} s; MLPLATFORM_WARM_START must not be 0.")
        time.sleep(0.2)


def fit(jobs: Jobs, folder: Path) -> float:
    """Seconds from the submission of the job to its end, followed as by `mlplatform submit`."""
    began = time.perf_counter()
    job_id = jobs.submit(["python", "trivial_fit.py"], folder)
    log = list(jobs.follow(job_id))
    seconds = time.perf_counter() - began
    if (status := jobs.get(job_id).status) != "SUCCEEDED":
        sys.exit(f"The job ended {status}:\n" + "\n".join(log[-30:]))
    return seconds


def torchrun(folder: Path) -> float:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "trivial_torchrun.py"]
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True)
    return time.perf_counter() - began


def demo(home: Path) -> float:
    """Seconds of the whole demo on a platform that it starts and stops."""
    command = [sys.executable, "-m", "mlplatform", "local", "demo"]
    env = {**os.environ, "MLPLATFORM_HOME": str(home)}
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def cold_import() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, lightning, mlflow, ray"], check=True)
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "job"
        folder.mkdir()
        for name in ("trivial_fit.py", "trivial_torchrun.py"):
            shutil.copy(SCRIPTS / name, folder)
        platform = LocalPlatform(Path(temporary) / "platform")
        try:
            with Jobs(platform.up()) as jobs:
                wait_for_template(platform)
                # Warm-up: reads torch from disk.
                fit(jobs, folder)
                torchrun(folder)
                pairs = interleaved(lambda: fit(jobs, folder), lambda: torchrun(folder), args.pairs)
        finally:
            platform.down()
        home = Path(temporary) / "demo"
        # The first run makes the databases.
        demo(home)
        demos = interleaved(lambda: demo(home), cold_import, args.pairs)
    rows = [
        Row("trivial-fit-embedded: a job's sum over 2 workers, to its end, by torchrun", "s", pairs, 1.2),
        Row("demo: its second run, by a cold import of torch, Lightning, MLflow and Ray", "s", demos, 5.0),
    ]
    Console(width=170).print(table(rows))
    write(rows, RESULTS)
    return 1 if any(row.result.holds is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
