"""Checks of `mlplatform doctor` on GPUs: drivers and devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlplatform.stack import secrets_folder
from mlplatform.stack.checks import gpus
from mlplatform.stack.checks.finding import Place

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A checkout with settings and secrets, and an empty folder of commands and one of devices."""
    text = (CHECKOUT / ".env.example").read_text()
    (tmp_path / ".env").write_text(text.replace("MLPLATFORM_VERSION=", "MLPLATFORM_VERSION=0"))
    secrets_folder.write_missing(tmp_path / "secrets")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return Place(tmp_path, dev=tmp_path / "dev")


def command(place: Place, name: str, script: str) -> None:
    """Add a command that takes precedence over the host's."""
    file = place.root / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'GPU 0: H100'", None),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "version mismatch"),
        ("true", "lists no GPU"),
    ],
)
def test_driver_of_nvidia_that_fails_is_found(
    place: Place, script: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATOR", "cuda")
    command(place, "nvidia-smi", script)
    problems = [finding.problem for finding in gpus.drivers(place)]
    assert len(problems) == bool(expected)
    assert all(expected in problem for problem in problems if expected)


def test_missing_driver_of_nvidia_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(gpus.drivers(place)) == []
    monkeypatch.setenv("ACCELERATOR", "cuda")
    monkeypatch.setenv("PATH", str(place.root / "bin"))
    assert ["no driver of NVIDIA" in finding.problem for finding in gpus.drivers(place)] == [True]


def test_devices_of_other_group_are_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATOR", "rocm")
    (place.dev / "dri").mkdir(parents=True)
    (place.dev / "kfd").touch(0o660)
    assert ["renderD" in finding.problem for finding in gpus.drivers(place)] == [True, False]
    node = place.dev / "dri" / "renderD128"
    node.touch(0o660)
    gid = node.stat().st_gid
    fixes = [finding.fix for finding in gpus.drivers(place)]
    assert len(fixes) == 2
    assert all(f"RENDER_GID={gid}/" in fix for fix in fixes)
    monkeypatch.setenv("RENDER_GID", str(gid))
    assert list(gpus.drivers(place)) == []
