"""A node that loses a GPU ends, with stand-ins of `nvidia-smi` in place of the driver's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

NODE = """
import threading
from mlplatform.services import gpu_watch
gpu_watch.start(0.02)
print("started", flush=True)
threading.Event().wait({seconds})
"""

TWO = "echo 'GPU 0: NVIDIA H100 (UUID: GPU-0)'; echo 'GPU 1: NVIDIA H100 (UUID: GPU-1)'"


@pytest.fixture
def smi(tmp_path: Path) -> Callable[[str], None]:
    """Sets what `nvidia-smi` does from now on."""

    def write(script: str) -> None:
        draft = tmp_path / "draft"
        draft.write_text(f"#!/bin/sh\necho called >>{tmp_path}/calls\n{script}\n")
        draft.chmod(0o755)
        draft.replace(tmp_path / "nvidia-smi")

    return write


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[float], subprocess.Popen[str]]]:
    """Starts a process that watches every 20 ms, and otherwise waits for so many seconds."""
    started = []

    def node(seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", NODE.format(seconds=seconds)]
        environment = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "started\n"
        return process

    yield node
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        ("echo 'Failed to initialize NVML: Unknown Error'; exit 255", 0),
        (TWO.split(";")[0] + "; echo 'Unable to determine the device handle for GPU1: GPU is lost.'", 1),
    ],
)
def test_node_that_loses_gpu_ends_and_says_why(
    smi: Callable[[str], None], start: Callable[[float], subprocess.Popen[str]], broken: str, seen: int
) -> None:
    smi(TWO)
    node = start(60)
    smi(broken)
    _, printed = node.communicate(timeout=30)
    assert node.returncode == -signal.SIGTERM
    assert f"This node sees {seen} of its 2 GPUs and ends." in printed


def test_single_failure_and_host_without_gpu_end_nothing(
    smi: Callable[[str], None], start: Callable[[float], subprocess.Popen[str]], tmp_path: Path
) -> None:
    without = start(0)
    assert without.wait(timeout=30) == 0
    # Every other call fails, as on a driver that is busy.
    smi(f"[ $(( $(wc -l <{tmp_path}/calls) % 2 )) = 1 ] || exit 255; {TWO}")
    node = start(60)
    while len((tmp_path / "calls").read_text().splitlines()) < 12:
        assert node.poll() is None
    assert node.poll() is None
