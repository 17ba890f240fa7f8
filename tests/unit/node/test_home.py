"""Homes of people's dev environments: lessons, and packages that `pip` adds to those of the image."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from mlplatform.node import home


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lessons, folder = tmp_path / "lessons", tmp_path / "homes"
    (lessons / "notebooks").mkdir(parents=True)
    (lessons / "notebooks/tour.ipynb").write_text("{}")
    folder.mkdir()
    monkeypatch.setattr(home, "HOMES", folder)
    monkeypatch.setattr(home, "_LESSONS", lessons)
    return folder


def test_lessons_are_in_new_home_and_removed_ones_stay_removed(homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = home.prepare("ann")
    assert own == homes / "ann"
    assert "is new" in capsys.readouterr().out
    (own / "notebooks/tour.ipynb").unlink()
    (own / "mine.py").write_text("1")
    assert home.prepare("ann") == own
    assert [file.name for file in own.rglob("*") if file.is_file()] == ["mine.py"]
    assert not capsys.readouterr().out


def test_packages_of_home_shadow_those_of_image(homes: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "httpx-99.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("httpx.py", "__version__ = '99.0'")
        archive.writestr("httpx-99.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: httpx\nVersion: 99.0\n")
        archive.writestr("httpx-99.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("httpx-99.0.dist-info/RECORD", "")
    variables = {**os.environ, **home.variables(home.prepare("ann")), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def runs(*command: str) -> str:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    version = ("python", "-c", "import httpx, pydantic; print(httpx.__version__)")
    assert runs(*version) != "99.0"
    runs("pip", "install", "--quiet", "--no-index", str(wheel))
    assert runs(*version) == "99.0"
    runs("pip", "uninstall", "--quiet", "--yes", "httpx")
    assert runs(*version) != "99.0"
