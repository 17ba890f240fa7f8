"""A node that loses a GPU ends, with stand-ins of `nvidia-smi` in place of the driver's."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NODE = """
import threading
from mlplatform.node import gpu_watch
gpu_watch.start(0.02)
print("started", flush=True)
threading.Event().wait({seconds})
"""

TWO = "echo 'GPU 0: NVIDIA H100 (UUID: GPU-0)'; echo 'GPU 1: NVIDIA H100 (UUID: GPU-1)'"


def smi(folder: Path, script: str) -> None:
    """Set what `nvidia-smi` does from now on."""
    draft = folder / "draft"
    draft.write_text(f"#!/bin/sh\necho called >>{folder}/calls\n{script}\n")
    draft.chmod(0o755)
    draft.replace(folder / "nvidia-smi")


@contextmanager
def watching(folder: Path, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A process that watches every 20 ms, and otherwise waits for so many seconds."""
    command = [sys.executable, "-c", NODE.format(seconds=seconds)]
    environment = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "started\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        ("echo 'Failed to initialize NVML: Unknown Error'; exit 255", 0),
        (TWO.split(";")[0] + "; echo 'Unable to determine the device handle for GPU1: GPU is lost.'", 1),
    ],
)
def test_node_that_loses_gpu_ends_and_says_why(tmp_path: Path, broken: str, seen: int) -> None:
    smi(tmp_path, TWO)
    with watching(tmp_path, 60) as node:
        smi(tmp_path, broken)
        _, printed = node.communicate(timeout=30)
    assert node.returncode == -signal.SIGTERM
    assert f"This node sees {seen} of its 2 GPUs and ends." in printed


def test_single_failure_and_host_without_gpu_end_nothing(tmp_path: Path) -> None:
    with watching(tmp_path, 0) as without:
        assert without.wait(timeout=30) == 0
    # Every other call fails, as on a driver that is busy.
    smi(tmp_path, f"[ $(( $(wc -l <{tmp_path}/calls) % 2 )) = 1 ] || exit 255; {TWO}")
    with watching(tmp_path, 60) as node:
        while len((tmp_path / "calls").read_text().splitlines()) < 12:
            assert node.poll() is None
        assert node.poll() is None
