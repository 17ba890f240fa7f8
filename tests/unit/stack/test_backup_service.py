"""Archives of backups: they are read back with owners and metadata, and those of other programs are rejected."""

import io
import os
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mlplatform.errors import StorageError
from mlplatform_stack.backup import archive, contents, files, objects
from mlplatform_stack.backup.archive import Header, Writer, reading
from mlplatform_stack.backup.contents import Progress, without_passwords
from mlplatform_stack.backup.verbs import merged
from mlplatform_stack.bootstrap.buckets import Versions

HEADER = Header("0.4.0", "2026-11-25T10:00:00+00:00", {"gateway": "0004"})
KNOWN = {"gateway": {"0001", "0004"}}
CONTENTS = {
    "databases/gateway": b"dump",
    "objects/ray/a/": b"x" * 3000,
    "objects/ray/é" + "n" * 200: b"",
    "objects/ray/" + "empty" * 20 + "/": b"",
}


def archived(add: Callable[[Writer], None], header: Header = HEADER) -> bytes:
    """The archive to which a function adds its members."""
    output = io.BytesIO()
    writer = Writer(output, header)
    add(writer)
    writer.close()
    return output.getvalue()


def written(header: Header = HEADER) -> bytes:
    def add(writer: Writer) -> None:
        for name, content in CONTENTS.items():
            writer.add_bytes(name, content, {"key": name} if name.startswith("objects") else None)

    return archived(add, header)


def read(content: bytes) -> dict[str, bytes]:
    with reading(io.BytesIO(content), KNOWN) as (_, members):
        return {member.meta.get("key", member.name): member.content.read() for member in members}


def test_archive_is_read_back_with_names_and_contents() -> None:
    assert read(written()) == CONTENTS
    with reading(io.BytesIO(written()), KNOWN) as (header, _):
        assert header == HEADER


def test_truncated_archive_is_rejected() -> None:
    """As if restic failed in the middle of a restore."""
    whole = written()
    for length in (512, 1600, whole.index(b"x" * 3000) + 2000):
        with pytest.raises(StorageError, match=r"not a backup|could not be read to its end"):
            read(whole[:length])


def test_foreign_files_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    foreign = io.BytesIO()
    with tarfile.open(mode="w", fileobj=foreign) as tar:
        tar.add(tmp_path / "file", "file")
    for content in (foreign.getvalue(), b"", b"\0" * 10240, b"no archive at all" * 1000):
        with pytest.raises(StorageError, match="This is not a backup of the platform"):
            read(content)


def test_newer_format_and_schema_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageError, match=r"database gateway has revision 0099 of version 0\.4\.0"):
        read(written(Header("0.4.0", "", {"gateway": "0099"})))
    monkeypatch.setattr(archive, "FORMAT", 99)
    newer = written()
    monkeypatch.undo()
    with pytest.raises(StorageError, match="format 99 of version"):
        read(newer)


def test_source_that_ends_early_aborts_backup() -> None:
    writer = Writer(io.BytesIO(), HEADER)
    with pytest.raises(StorageError, match="part could not be read to its end of 5 bytes"):
        writer.add("part", 5, io.BytesIO(b"abc"))


def test_folder_is_restored_with_links_and_modes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "empty").mkdir(parents=True)
    (source / "deep").mkdir()
    (source / "deep" / "script").write_bytes(b"#!")
    (source / "deep" / "script").chmod(0o750)
    (source / "link").symlink_to("deep/script")
    content = archived(lambda writer: files.add_folder(writer, "workspace", source))
    target.mkdir()
    with reading(io.BytesIO(content), KNOWN) as (_, members):
        for member in members:
            files.restore_entry(target, member.meta, member.content)
    assert (target / "link").read_bytes() == b"#!"
    assert (target / "deep" / "script").stat().st_mode & 0o777 == 0o750
    assert (target / "empty").is_dir()


@pytest.mark.parametrize("path", ["../out", "/etc/out", "link/out"])
def test_restored_file_never_leaves_its_folder(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(StorageError):
        files.restore_entry(folder, {"kind": "file", "path": path, "uid": 0, "gid": 0, "mode": 0o600}, io.BytesIO())
    assert not (tmp_path / "out").exists()


OWNER = {"uid": os.getuid(), "gid": os.getgid(), "mode": 0o644}


def test_restored_file_gains_no_rights(tmp_path: Path) -> None:
    files.restore_entry(tmp_path, {**OWNER, "kind": "file", "path": "tool", "mode": 0o6755}, io.BytesIO(b"#!"))
    files.restore_entry(tmp_path, {**OWNER, "kind": "folder", "path": "shared", "mode": 0o3777}, io.BytesIO())
    assert [(tmp_path / name).stat().st_mode & 0o7777 for name in ("tool", "shared")] == [0o755, 0o1777]


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
@pytest.mark.parametrize("before", ["file", "folder", "link to a folder", "link to nothing"])
def test_restored_entry_replaces_another_kind(tmp_path: Path, kind: str, before: str) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    for path in (folder, outside):
        path.mkdir()
    (outside / "kept").touch()
    place = folder / "place"
    if before == "folder":
        (place / "deep").mkdir(parents=True)
    elif before == "file":
        place.touch()
    else:
        place.symlink_to(outside if before == "link to a folder" else "nothing")
    meta = {**OWNER, "kind": kind, "path": "place", **({"target": "elsewhere"} if kind == "link" else {})}
    files.restore_entry(folder, meta, io.BytesIO(b"content"))
    assert (place.is_symlink(), place.is_dir(), place.is_file()) == (kind == "link", kind == "folder", kind == "file")
    assert (outside / "kept").exists()


class Listing:
    """An S3 client with one page per entry, which splits keys over pages."""

    def __init__(self, *entries: tuple[str, int, str]) -> None:
        moment = datetime(2026, 11, 25, tzinfo=UTC)
        self._pages: list[dict[str, Any]] = []
        for key, second, version in entries:
            entry = {"Key": key, "LastModified": moment + timedelta(seconds=second), "VersionId": version}
            kind = "DeleteMarkers" if version == "deleted" else "Versions"
            size = {} if version == "deleted" else {"Size": 1}
            self._pages.append({kind: [{**entry, "IsLatest": False, **size}]})

    def get_paginator(self, name: str) -> Any:
        assert name == "list_object_versions"
        return self

    def paginate(self, **_: str) -> list[dict[str, Any]]:
        return self._pages


@pytest.mark.parametrize(
    ("history", "earliest", "expected"),
    [
        ([("a", 9, "new"), ("a", 1, "old")], False, ["old"]),
        ([("a", 5, "new"), ("a", 1, "old")], False, ["new"]),
        ([("a", 5, "new"), ("a", 1, "old")], True, ["old"]),
        ([("a", 5, "first")], True, ["first"]),
        ([("a", 5, "deleted"), ("a", 1, "old")], False, ["old"]),
        ([("a", 9, "deleted"), ("a", 1, "old")], False, ["old"]),
        ([("a", 2, "deleted"), ("a", 1, "old")], False, []),
        ([("a", 2, "deleted"), ("a", 1, "old")], True, []),
        ([("a", 9, "late")], False, []),
        # A log, whose folder keeps no versions.
        ([("a", 9, "null")], False, ["null"]),
        ([("a", 1, "one"), ("b", 1, "two")], False, ["one", "two"]),
    ],
)
def test_backup_reads_versions_of_one_moment(
    history: list[tuple[str, int, str]], earliest: bool, expected: list[str]
) -> None:
    """Of a backup that read the databases from second 4 to second 6."""
    start = datetime(2026, 11, 25, tzinfo=UTC)
    since, until = start + timedelta(seconds=4), start + timedelta(seconds=6)
    client: Any = Listing(*history)
    found = objects.versions_at(client, "ray", since, until, earliest=earliest)
    assert [version.id for version in found] == expected


def test_settings_of_host_survive_restore() -> None:
    current = "STACK_PREFIX=new-\nWORKER_MEMORY=2g\nWEBHOOK_SCHEMES=https\n# text\nMAIL_DOMAINS=\n"
    saved = "STACK_PREFIX=old-\nWORKER_MEMORY=9g\nWEBHOOK_SCHEMES=https,http\nMAIL_DOMAINS=example.org\n"
    entrance = "DOMAIN=\nACME_EMAIL=\nHTTPS_PORT=443\nS3_ENDPOINT_URL=https://s3.example.org\n"
    of_another = "DOMAIN=ml.example.org\nACME_EMAIL=ops@example.org\nHTTPS_PORT=8443\nS3_ENDPOINT_URL=\n"
    assert merged(current + entrance, saved + of_another + "UNKNOWN=1\n") == (
        "STACK_PREFIX=new-\nWORKER_MEMORY=2g\nWEBHOOK_SCHEMES=https,http\n# text\nMAIL_DOMAINS=example.org\n" + entrance
    )


def test_settings_are_saved_without_passwords_in_addresses() -> None:
    assert without_passwords("PIP_INDEX_URL=https://ada:pw@host/simple\n") == "PIP_INDEX_URL=https://host/simple\n"


def test_present_secrets_are_saved_during_a_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("secrets/next/ray_token", "secrets/ray_token", "env", "volumes/workspace/notes"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(contents, "ENV", tmp_path / "env")
    monkeypatch.setattr(contents, "SECRETS", tmp_path / "secrets")
    monkeypatch.setattr(contents, "VOLUMES", tmp_path / "volumes")
    saved = read(archived(contents._save_files))
    secrets = {name: content for name, content in saved.items() if name.startswith("secrets/")}
    assert secrets == {"secrets/ray_token": b"secrets/ray_token"}


def test_grafana_is_saved_without_password_of_its_data_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    password = "of-prometheus" * 4
    with closing(sqlite3.connect(tmp_path / files.GRAFANA)) as database, database:
        database.execute("CREATE TABLE data_source (name TEXT, secure_json_data TEXT)")
        database.execute("INSERT INTO data_source VALUES ('Prometheus', ?)", (password,))
        database.execute("CREATE TABLE secrets (type TEXT, value TEXT)")
        database.executemany("INSERT INTO secrets VALUES (?, ?)", [("datasource", password), ("other", "kept")])
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp" / files.GRAFANA).write_text("of a backup that was killed")
    saved = read(archived(lambda writer: files.add_grafana(writer, tmp_path)))[f"grafana/{files.GRAFANA}"]
    assert list((tmp_path / "tmp").iterdir()) == []
    assert password.encode() not in saved
    (tmp_path / "restored").write_bytes(saved)
    with closing(sqlite3.connect(tmp_path / "restored")) as restored:
        assert restored.execute("SELECT name FROM data_source").fetchall() == [("Prometheus",)]
        assert restored.execute("SELECT value FROM secrets").fetchall() == [("kept",)]


class Buckets:
    """An object store that knows the state of its buckets' versions, one of which cannot be changed back.

    It has botocore's events, by which a request gets what is excluded.
    """

    def __init__(self, broken: str, **states: str) -> None:
        self.states = states
        self.bodies: dict[str, bytes] = {}
        self._broken = broken
        self.meta = SimpleNamespace(events=self)

    def register(self, _: str, handler: Callable[..., None]) -> None:
        self._handler = handler

    def unregister(self, _: str, handler: Callable[..., None]) -> None:
        assert handler == self._handler

    def get_bucket_versioning(self, Bucket: str) -> dict[str, str]:  # noqa: N803 boto3's name
        return {"Status": self.states[Bucket]}

    def put_bucket_versioning(self, Bucket: str, VersioningConfiguration: dict[str, str]) -> None:  # noqa: N803
        if (Bucket, VersioningConfiguration["Status"]) == (self._broken, "Suspended"):
            raise StorageError("no answer")
        params = {"body": b"</VersioningConfiguration>"}
        self._handler(params)
        self.states[Bucket], self.bodies[Bucket] = VersioningConfiguration["Status"], params["body"]


def test_buckets_keep_no_versions_after_a_backup() -> None:
    """Nor after one that follows a killed backup, or that cannot change one of the buckets back."""
    states = {"ray": "Enabled", "datasets": "Suspended", "other": "Suspended", "mlflow-artifacts": "Enabled"}
    store, always = Buckets("datasets", **states), {"mlflow-artifacts": Versions(7)}
    with pytest.raises(StorageError, match="no answer"), objects.versions_kept(cast("Any", store), states, always):
        assert set(store.states.values()) == {"Enabled"}
    assert store.states == {**states, "ray": "Suspended", "datasets": "Enabled"}


def test_backup_keeps_versions_of_snapshots_while_it_reads() -> None:
    store = Buckets("", ray="Enabled", jobs="Enabled")
    always = {"ray": Versions(1, ["*/reports/"], whole_backup=True), "jobs": Versions(7, ["logs/"])}
    with objects.versions_kept(cast("Any", store), store.states, always):
        assert store.bodies == {"ray": b"</VersioningConfiguration>"}
    excluded = b"<ExcludedPrefixes><Prefix>*/reports/</Prefix></ExcludedPrefixes></VersioningConfiguration>"
    assert store.bodies == {"ray": excluded}
    assert store.states == {"ray": "Enabled", "jobs": "Enabled"}


HOME_FILES = {
    "work/a.py": "code",
    ".ray/auth_token": "secret",
    ".ray/notes": "kept",
    ".mlflow/credentials": "secret",
    ".cache/pip/wheel": "large",
    "work/.cache/result": "kept",
}


@pytest.fixture
def backup_of_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A backup of a stack in which alice has a home."""
    for name, text in HOME_FILES.items():
        path = tmp_path / "old/homes/alice" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "old/wiki").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "env").write_text("")
    monkeypatch.setattr(contents, "ENV", tmp_path / "env")
    monkeypatch.setattr(contents, "VOLUMES", tmp_path / "old")
    saved = archived(contents._save_files, Header("0.4.0", "", {}))
    monkeypatch.setattr(contents, "VOLUMES", tmp_path / "new")
    return saved


def test_backup_has_files_of_people_without_tokens_and_caches(backup_of_home: bytes) -> None:
    saved = {name.removeprefix("homes/alice/"): text for name, text in read(backup_of_home).items() if text}
    assert saved == {"work/a.py": b"code", ".ray/notes": b"kept", "work/.cache/result": b"kept"}


def test_files_of_people_are_restored_where_volume_exists(backup_of_home: bytes, tmp_path: Path) -> None:
    kinds = {name.partition("/")[0] for name in read(backup_of_home)}
    with pytest.raises(StorageError, match=r"lacks \(\.\., homes, wiki\): restore it with"):
        contents.check_places({*kinds, ".."})
    uploads: Any = None  # the backup has no objects
    (tmp_path / "new/homes").mkdir()
    (tmp_path / "new/wiki").mkdir()
    contents.check_places(kinds)
    with reading(io.BytesIO(backup_of_home), {}) as (_, members):
        for member in members:
            if member.name.startswith("homes"):
                contents._restore(member, uploads, Progress("restored"))
    assert (tmp_path / "new/homes/alice/work/a.py").read_text() == "code"
