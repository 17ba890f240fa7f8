"""Hardware that programs of the host report."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlplatform.stack import host

LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)
  MIG 3g.20gb     Device  0: (UUID: MIG-0)
  MIG 3g.20gb     Device  1: (UUID: MIG-1)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1)
"""


def test_instances_of_divided_gpu_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{LISTING}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert host._gpus() == ("cuda", 2)
