"""`make restore` with a recording program in the place of Docker; `tests/stack/test_backup.py` has the real one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mlplatform.errors import HostError, SettingsError, StorageError
from mlplatform_stack import unfinished
from mlplatform_stack.backup import verbs as backup

# Records each call. The verified backup is the latest one only until then.
DOCKER = """\
echo "$*" >>"$CALLS"
case "$*" in
  *" restore verify "*"$DAMAGED") exit 1 ;;
  *" restore has-data") exit "$HAS_DATA" ;;
  *" restore apply "*) exit "$APPLIED" ;;
  *" restore verify "*" latest") echo 5eed01 ;;
  *" config --format json") echo '{"services": {}}' ;;
esac
"""


@pytest.fixture
def root(root: Path, program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that was never started."""
    program("docker", DOCKER)
    (root / ".env.example").rename(root / ".env")
    monkeypatch.setenv("CALLS", str(root / "calls"))
    for name, value in {"DAMAGED": "none", "HAS_DATA": "0", "APPLIED": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLPLATFORM_VERSION", "0")
    return root


def calls(root: Path) -> list[str]:
    return (root / "calls").read_text().splitlines()


def test_restored_backup_is_the_one_that_was_verified(root: Path) -> None:
    list(backup.restore(root, "s3:https://s3.example.org/backups"))
    (verified,) = [call for call in calls(root) if " restore verify " in call]
    (applied,) = [call for call in calls(root) if " restore apply " in call]
    assert verified.endswith(" latest")
    assert applied.endswith(" s3:https://s3.example.org/backups 5eed01")


def test_file_is_not_a_place_of_backups(root: Path) -> None:
    (root / "stack.tar").touch()
    with pytest.raises(SettingsError, match=r"No backup was found at .*stack\.tar; name its folder or server"):
        next(backup.restore(root, str(root / "stack.tar")))


def test_damaged_backup_changes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAMAGED", "latest")
    with pytest.raises(StorageError, match="nothing was changed"):
        next(backup.restore(root, "s3:https://s3.example.org/backups"))
    assert len(calls(root)) == 1


def test_interrupted_restore_blocks_start_until_it_is_repeated(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "s3:https://s3.example.org/backups"
    monkeypatch.setenv("APPLIED", "1")
    with pytest.raises(StorageError, match="The restore is unfinished"):
        list(backup.restore(root, source))
    with pytest.raises(HostError, match=f"repeat `make restore FROM={source} SNAPSHOT=5eed01`"):
        unfinished.check(root)
    monkeypatch.setenv("APPLIED", "0")
    monkeypatch.setenv("HAS_DATA", "3")
    list(backup.restore(root, source))
    unfinished.check(root)
    with pytest.raises(HostError, match="FORCE=1"):
        list(backup.restore(root, source))
