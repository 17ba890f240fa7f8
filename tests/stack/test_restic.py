"""The tests of backups' repositories, with the restic of the platform's image in place of one on this host."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from host import CHECKOUT, Stack, run

TESTS = "tests/unit/services/test_backup_repository.py"


@pytest.mark.nightly
def test_restic_of_image_keeps_and_restores_backups(checkout: Stack, tmp_path: Path) -> None:
    container = run("docker", "create", f"mlplatform-platform:{checkout.settings.version}").stdout.strip()
    try:
        run("docker", "cp", f"{container}:/usr/bin/restic", str(tmp_path / "restic"))
    finally:
        run("docker", "rm", container)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    tested = run(sys.executable, "-m", "pytest", TESTS, cwd=CHECKOUT, env={**os.environ, "PATH": path}, check=False)
    assert tested.returncode == 0, tested.stdout[-3000:]
    assert re.search(r"^=* ?\d+ passed in", tested.stdout.splitlines()[-1]), tested.stdout[-3000:]
