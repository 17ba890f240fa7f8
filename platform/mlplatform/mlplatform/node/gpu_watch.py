"""Watch of a worker over its GPUs: a node that loses one ends, so that no more jobs start there.

A reload of systemd takes the devices from running containers, and a GPU that fails leaves the bus. Ray notices neither,
because its agents keep the devices open. Docker restarts the container, which gets its devices back in the first case.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_FAILURES = 3
"""Failures in a row after which a GPU is lost."""


def start(interval_s: float = 15.0) -> None:
    """Watch this container's GPUs, if it has any, in a thread that ends this process with SIGTERM when one is lost."""
    if gpus := visible():
        threading.Thread(target=_watch, args=(gpus, interval_s), daemon=True).start()


def visible() -> int:
    """Return the number of GPUs that a new process can open."""
    if not shutil.which("nvidia-smi"):
        return sum(map(_opens, Path("/dev/dri").glob("renderD*"))) if _opens(Path("/dev/kfd")) else 0
    return of_nvidia()


def of_nvidia() -> int:
    """Return the number of GPUs that `nvidia-smi` lists; 0 if it is missing, fails or hangs."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return 0
    # The instances of a divided GPU (MIG) are listed below it, on lines of their own.
    return 0 if done.returncode else len(re.findall(r"^GPU ", done.stdout, re.M))


def _watch(gpus: int, interval_s: float) -> None:
    failures = 0
    while failures < _FAILURES:
        time.sleep(interval_s)
        failures = failures + 1 if visible() < gpus else 0
    advice = "If it does not return, look at `nvidia-smi` on the host: a GPU that has failed needs a reboot."
    print(f"This node sees {visible()} of its {gpus} GPUs and ends. {advice}", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _opens(device: Path) -> bool:
    try:
        os.close(os.open(device, os.O_RDWR))
    except OSError:
        return False
    return True
