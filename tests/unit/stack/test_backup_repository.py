"""Backups in a real repository of restic: earlier ones are restored, old ones removed, damaged ones rejected.

Without restic 0.17 or later they are skipped; `tests/stack/engine.sh` installs it from the release of our image.
"""

import io
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from mlplatform.errors import StorageError
from mlplatform_stack.backup import __main__ as program
from mlplatform_stack.backup import databases, repository, timer
from mlplatform_stack.backup.archive import Header, Writer, reading
from mlplatform_stack.backup.repository import Repository

pytestmark = pytest.mark.skipif(not shutil.which("restic"), reason="restic is missing: install the package `restic`")

HEADER = Header("0.4.0", "2026-11-25T10:00:00+00:00", {"gateway": "0004"})
KNOWN = {"gateway": {"0004"}}

# Random, so that restic compresses nothing, and large enough for many of its chunks of about 1 MiB: where they end is
# another matter of chance in each repository, and only whole ones are shared.
SHARED = random.Random(1).randbytes(32 << 20)  # noqa: S311 - contents
FIRST = {"databases/gateway": b"first", "objects/ray/weights": SHARED}
SECOND = {"databases/gateway": b"second", "objects/ray/weights": SHARED, "objects/ray/more": b"more"}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A place for backups in a folder that does not exist yet."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "backup_password").write_text("correct")
    monkeypatch.setattr(repository, "SECRETS", tmp_path / "secrets")
    monkeypatch.setattr(databases, "known_revisions", lambda: KNOWN)
    environment = Repository._environment
    cache = {"RESTIC_CACHE_DIR": str(tmp_path / "cache")}
    monkeypatch.setattr(Repository, "_environment", lambda self: {**environment(self), **cache})
    monkeypatch.setattr(repository, "FOLDER", tmp_path / "backups")
    (tmp_path / "volumes").mkdir()
    monkeypatch.setattr("mlplatform_stack.backup.contents.VOLUMES", tmp_path / "volumes")
    return Repository("/mnt/backups")


def writing(contents: dict[str, bytes]) -> Callable[[IO[bytes]], None]:
    def write(output: IO[bytes]) -> None:
        writer = Writer(output, HEADER)
        for name, content in contents.items():
            kind, bucket, *key = name.split("/")
            writer.add_bytes(name, content, {"bucket": bucket, "key": key[0]} if kind == "objects" else None)
        writer.close()

    return write


def save(kept: Repository, contents: dict[str, bytes]) -> str:
    """Save a backup; return its id."""
    kept.save(writing(contents))
    return kept.id_of("latest")


def read(kept: Repository, snapshot: str) -> dict[str, bytes]:
    with kept.opened(snapshot) as stream:
        content = io.BytesIO(stream.read())
    with reading(content, KNOWN) as (_, members):
        return {member.name: member.content.read() for member in members}


def packs(kept: Repository) -> list[Path]:
    """Files with the data of all backups."""
    return sorted(path for path in (Path(kept.address) / "data").rglob("*") if path.is_file())


def size(kept: Repository) -> int:
    return sum(path.stat().st_size for path in packs(kept))


def test_each_backup_adds_what_has_changed_and_is_restored(kept: Repository) -> None:
    first = save(kept, FIRST)
    before = size(kept)
    second = save(kept, SECOND)
    assert before > len(SHARED)
    # The header and the changed members are in the first chunk and the last one.
    assert size(kept) - before < len(SHARED) / 2
    assert read(kept, first) == FIRST
    assert read(kept, second[:8]) == SECOND
    assert read(kept, "latest") == SECOND
    assert kept.id_of(first[:8]) == first
    kept.check()


def test_retention_removes_older_backup_with_its_data(kept: Repository) -> None:
    first, second = save(kept, FIRST), save(kept, {"databases/gateway": b"only"})
    kept.forget(0, 0, 0)
    assert read(kept, first) == FIRST
    kept.forget(1, 0, 0)
    assert kept.id_of("latest") == second
    assert read(kept, "latest") == {"databases/gateway": b"only"}
    with pytest.raises(StorageError):
        kept.id_of(first)
    assert size(kept) < len(SHARED) / 2
    kept.check()


def test_backup_with_flipped_byte_is_rejected_by_verification(kept: Repository) -> None:
    save(kept, FIRST)
    damaged = packs(kept)
    assert damaged
    for path in damaged:
        content = path.read_bytes()
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1
        path.chmod(0o600)
        path.write_bytes(changed)
        with pytest.raises(StorageError, match=r"failed at /mnt/backups|could not be read to its end"):
            program.main("verify", kept.shown, "latest")
        path.write_bytes(content)
    assert program.main("verify", kept.shown, "latest") == 0


def test_backup_that_fails_while_it_is_written_is_not_kept(kept: Repository) -> None:
    first = save(kept, FIRST)

    def fail(output: IO[bytes]) -> None:
        output.write(b"x" * 1000)
        raise StorageError("the object store is gone")

    with pytest.raises(StorageError, match="the object store is gone"):
        kept.save(fail)
    assert kept.id_of("latest") == first


def test_other_password_and_missing_backup_are_named(
    kept: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(kept, FIRST)
    with pytest.raises(StorageError, match=r"^/mnt/backups has no backup 0123abcd; name another one with SNAPSHOT=\.$"):
        kept.id_of("0123abcd")
    (tmp_path / "secrets" / "backup_password").write_text("wrong")
    with pytest.raises(StorageError, match="secrets/backup_password does not open the backups at /mnt/backups"):
        kept.check()
    monkeypatch.setattr(repository, "FOLDER", tmp_path / "nothing")
    with pytest.raises(StorageError, match="No backups were found at /mnt/nothing; mount its disk"):
        Repository("/mnt/nothing").check()


def test_timer_makes_no_new_place_for_former_backups(
    kept: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the disk is not mounted that has them."""
    monkeypatch.setattr(timer, "STATE", tmp_path / "state")
    monkeypatch.setattr(program.contents, "save", writing(FIRST))
    (tmp_path / "state").mkdir()
    for name in ("DAILY", "WEEKLY", "MONTHLY"):
        monkeypatch.setenv(f"BACKUP_KEEP_{name}", "0")
    add = ("add", kept.shown)
    assert program.main(*add) == 0
    shutil.rmtree(kept.address)
    Path(kept.address).mkdir()
    with pytest.raises(StorageError, match="No backups were found at /mnt/backups; mount its disk"):
        program.main(*add)
    assert list(Path(kept.address).iterdir()) == []
    assert program.main("save", *add[1:]) == 0
    assert program.main(*add) == 0
