"""Templates leave the GPUs alone, and each program that starts warm sees those that its environment names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm import Warm, start_template

from mlplatform_warm.template import DEVICES
from mlplatform_warm.variables import OF_DRIVERS

DEVICE = next((path for path in ("/dev/nvidia0", "/dev/kfd") if Path(path).exists()), None)

pytestmark = pytest.mark.skipif(DEVICE is None, reason="neither this machine nor CI has a GPU; run it where one is")

COUNT = """
import torch
loaded = torch.cuda.is_initialized()
count = torch.cuda.device_count()
total = float(sum(torch.ones(3, device=f"cuda:{number}").sum() for number in range(count)))
print(count, total, torch.cuda.is_available(), loaded)
"""

HOLDER = """
import sys, torch
print(float(torch.ones(3, device="cuda").sum()), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A template with torch, which has served a program."""
    running = start_template(tmp_path_factory.mktemp("warm") / "sockets")
    assert output(running, "import sys; print('torch' in sys.modules)", {}) == "True\n"
    yield running
    running.process.kill()
    running.process.wait()


def output(warm: Warm, code: str, variables: dict[str, str]) -> str:
    """Return the output of a program that starts warm."""
    done = subprocess.run(
        warm.command(["-c", code]),
        env=warm.environment(variables), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert warm.reasons()[-1] is None
    return done.stdout


def open_devices(pid: int) -> list[str]:
    """Return the GPUs' device files that a process has open or mapped."""
    opened = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    mapped = [line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return [path for path in opened + mapped if path.startswith(DEVICES)]


def test_no_template_has_opened_a_device(warm: Warm) -> None:
    assert {name: open_devices(pid) for name, pid in warm.pids().items()} == {"keeper": [], "base": [], "driver": []}


def test_device_of_program_is_not_opened_in_template(warm: Warm) -> None:
    holder = subprocess.Popen(
        warm.command(["-c", HOLDER]),
        env=warm.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout
    assert holder.stdout.readline() == "3.0\n"
    try:
        # The check sees a context where there is one.
        (program,) = Path(f"/proc/{warm.pids()['driver']}/task/{warm.pids()['driver']}/children").read_text().split()
        assert open_devices(int(program))
        assert not any(open_devices(pid) for pid in warm.pids().values())
        # A second program has a context of its own at the same time.
        assert output(warm, HOLDER, {}) == "3.0\n"
    finally:
        holder.communicate(timeout=60)
    assert holder.returncode == 0


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("0", 1), ("-1", 0), ("0,99", 1)])
def test_visible_devices_take_effect(visible: str, count: int, warm: Warm) -> None:
    variables = {"CUDA_VISIBLE_DEVICES": visible}
    cold = subprocess.run(
        [sys.executable, "-c", COUNT],
        env={**os.environ, **OF_DRIVERS, **variables}, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert output(warm, COUNT, variables) == cold.stdout == f"{count} {count * 3.0} {count > 0} False\n"
