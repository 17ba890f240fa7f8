"""Note about the metadata address of a cloud; a program stands in for Docker."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlplatform.stack import doctor, firewall
from mlplatform.stack.checks import start
from mlplatform.stack.checks.finding import Place

# Reports that all images are built, and that MinIO runs, whose ports are then not tried.
DOCKER = """\
#!/bin/sh
case "$*" in
  "version "*) echo 28.0.0 ;;
  "compose version "*) echo 2.40.0 ;;
  "info "*) echo '{"DockerRootDir": "/", "Runtimes": {}}' ;;
  "image inspect "*) echo sha256:1 ;;
  *" ps --services") echo minio ;;
  "run "*) PROBE ;;
esac
"""


@pytest.mark.parametrize(("probe", "reached"), [("echo open", True), ("echo 'timed out' >&2; exit 1", False)])
def test_reachable_metadata_address_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: str, reached: bool
) -> None:
    program = tmp_path / "docker"
    program.write_text(DOCKER.replace("PROBE", probe))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / ".env").write_text("MLPLATFORM_VERSION=1\nDISK_NEEDED_GB=0\n")
    noted = [note for note in doctor.check_host(tmp_path) if "169.254.169.254" in note]
    assert [note.endswith(f": {firewall.RULE}") for note in noted] == [True] * reached
    found = list(start.metadata_address(Place(tmp_path)))
    assert [(finding.fix, finding.blocks) for finding in found] == [(firewall.RULE, False)] * reached
