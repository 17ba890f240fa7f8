"""Data sets in a folder: digests, interrupted uploads, verified downloads. tests/stack tests them in a bucket."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from command_line import Serve

from mlplatform.errors import SettingsError, StorageError
from mlplatform.files import checksums
from mlplatform.registry import datasets

PUT = "from mlplatform.registry import datasets; import sys; datasets.put(sys.argv[1], 'many')"


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder that stores the data sets."""
    monkeypatch.setenv("MLPLATFORM_DATASETS", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    (folder / "cats").mkdir(parents=True)
    (folder / "cats" / "1.png").write_bytes(b"a cat")
    (folder / "labels.csv").write_text("1,cat\n")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_folder_round_trips(images: Path, tmp_path: Path) -> None:
    kept = datasets.put(images, "pets")
    assert kept.size == len(b"a cat") + len("1,cat\n")
    assert contents(Path(kept.uri)) == contents(images), "the stored data set is not readable in place"
    assert datasets.find("pets").download(tmp_path / "back") == tmp_path / "back"
    assert contents(tmp_path / "back") == contents(images)


def test_linked_files_are_uploaded(images: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "2.png").write_bytes(b"a dog")
    (images / "dogs").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "back").symlink_to(images)
    kept = datasets.put(images, "pets")
    assert set(kept.sums) == {"cats/1.png", "dogs/2.png", "labels.csv"}
    back = kept.download(tmp_path / "back")
    assert contents(back)["dogs/2.png"] == b"a dog"
    (back / "dogs").rename(tmp_path / "elsewhere")
    (back / "dogs").symlink_to(tmp_path / "elsewhere")
    assert checksums.holds(back, kept.sums)


def test_single_file_keeps_its_name(images: Path, tmp_path: Path) -> None:
    datasets.put(images / "labels.csv", "labels")
    datasets.find("labels").download(tmp_path / "back")
    assert contents(tmp_path / "back") == {"labels.csv": b"1,cat\n"}


def test_digest_depends_on_names_and_contents_only(images: Path, tmp_path: Path) -> None:
    first = datasets.put(images, "pets").digest
    images.rename(tmp_path / "elsewhere")
    assert datasets.put(tmp_path / "elsewhere", "other").digest == first
    (tmp_path / "elsewhere" / "labels.csv").write_text("1,dog\n")
    changed = datasets.put(tmp_path / "elsewhere", "pets").digest
    (tmp_path / "elsewhere" / "labels.csv").rename(tmp_path / "elsewhere" / "names.csv")
    renamed = datasets.put(tmp_path / "elsewhere", "pets").digest
    assert len({first, changed, renamed}) == 3


def test_second_put_writes_nothing(images: Path, root: Path) -> None:
    first = datasets.put(images, "pets")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert datasets.put(images, "pets") == first
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_bare_name_means_latest_put(images: Path) -> None:
    old = datasets.put(images, "pets")
    (images / "labels.csv").write_text("1,dog\n")
    new = datasets.put(images, "pets")
    assert datasets.find("pets").digest == new.digest
    assert datasets.find(f"pets@{old.digest[:6]}").digest == old.digest
    assert [found.digest for found in datasets.list_datasets()] == [old.digest, new.digest]
    (images / "labels.csv").write_text("1,cat\n")
    assert datasets.put(images, "pets").digest == old.digest
    assert datasets.find("pets").digest == old.digest


def test_killed_put_is_invisible_until_repeated(root: Path, tmp_path: Path) -> None:
    many = tmp_path / "many"
    many.mkdir()
    for number in range(3000):
        (many / f"{number}.txt").write_text(str(number))
    process = subprocess.Popen([sys.executable, "-c", PUT, str(many)])
    deadline = time.monotonic() + 30
    while not (root / "many").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert (root / "many").exists()
    assert datasets.list_datasets() == []
    with pytest.raises(StorageError, match="no data set 'many'"):
        datasets.find("many")

    datasets.put(many, "many").download(tmp_path / "back")
    assert contents(tmp_path / "back") == contents(many)


def test_download_is_atomic(images: Path, tmp_path: Path) -> None:
    kept = datasets.put(images, "pets")
    (Path(kept.uri) / "cats" / "1.png").write_bytes(b"a dog")
    (tmp_path / "back").mkdir()
    with pytest.raises(StorageError, match=r"cats/1\.png in .* does not have the checksum that was recorded") as error:
        kept.download(tmp_path / "back" / "pets")
    assert "\n" not in str(error.value)
    assert list((tmp_path / "back").iterdir()) == []


def test_next_put_restores_deleted_objects(images: Path, tmp_path: Path) -> None:
    kept = datasets.put(images, "pets")
    (Path(kept.uri) / "cats" / "1.png").unlink()
    with pytest.raises(StorageError, match=r"cats/1\.png in .* cannot be read; upload the data set again"):
        kept.download(tmp_path / "back")
    assert datasets.put(images, "pets") == kept
    assert contents(kept.download(tmp_path / "back")) == contents(images)


def test_file_changed_during_upload_is_rejected(images: Path, root: Path) -> None:
    before = datasets._state(images / "labels.csv")
    (images / "labels.csv").write_text("1,dog\n")
    os.utime(images / "labels.csv", ns=(0, 0))
    files = {"labels.csv": images / "labels.csv"}
    with pytest.raises(StorageError, match=r"labels\.csv changed during the upload"):
        datasets._send(datasets._store(), "pets/abc", files, {"labels.csv": before})
    assert not (root / "pets" / "abc" / "labels.csv").exists()


def test_account_that_only_adds_empties_a_changed_file(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    sent: list[tuple[str, str]] = []
    answers = {"GET": (200, "<ListBucketResult/>"), "DELETE": (403, "<Error><Code>AccessDenied</Code></Error>")}

    def answer(method: str, path: str) -> tuple[int, str]:
        sent.append((method, path))
        return answers.get(method, (200, ""))

    account = tmp_path / "account"
    account.write_text("[default]\naws_access_key_id = someone\naws_secret_access_key = something\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(account))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", serve(answer))
    monkeypatch.setenv("MLPLATFORM_DATASETS", "s3://datasets")
    before = datasets._state(images / "labels.csv")
    os.utime(images / "labels.csv", ns=(0, 0))
    with pytest.raises(StorageError, match=r"labels\.csv changed during the upload"):
        datasets._send(datasets._store(), "pets/abc", {"labels.csv": images / "labels.csv"}, {"labels.csv": before})
    assert [method for method, path in sent if path.startswith("/datasets/pets/abc/labels.csv")] == [
        *("PUT", "DELETE", "PUT")
    ]


def test_second_download_transfers_nothing(images: Path, tmp_path: Path) -> None:
    kept = datasets.put(images, "pets")
    before = {path: path.stat().st_ino for path in kept.download(tmp_path / "back").rglob("*")}
    kept.download(tmp_path / "back")
    assert {path: path.stat().st_ino for path in (tmp_path / "back").rglob("*")} == before


def test_concurrent_ranks_share_one_download(images: Path, tmp_path: Path) -> None:
    kept = datasets.put(images, "pets")
    with ThreadPoolExecutor(8) as ranks:
        folders = list(ranks.map(lambda rank: kept.download(tmp_path / "node" / "pets"), range(8)))
    assert set(folders) == {tmp_path / "node" / "pets"}
    assert contents(folders[0]) == contents(images)
    assert [path.name for path in (tmp_path / "node").iterdir()] == ["pets"]


def test_other_files_are_never_overwritten(images: Path, tmp_path: Path) -> None:
    kept = datasets.put(images, "pets")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(StorageError, match="mine holds other files; name one that is new or empty"):
        kept.download(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_manifest_cannot_escape_download_folder(images: Path, root: Path) -> None:
    kept = datasets.put(images, "pets")
    manifest = root / ".manifests" / "pets" / kept.digest
    record = json.loads(manifest.read_text())
    record["files"]["../../escaped"] = record["files"].pop("labels.csv")
    manifest.write_text(json.dumps(record))
    with pytest.raises(StorageError, match="not below the folder"):
        datasets.find("pets")


def test_changed_manifest_is_detected(images: Path, root: Path) -> None:
    kept = datasets.put(images, "pets")
    manifest = root / ".manifests" / "pets" / kept.digest
    manifest.write_text(manifest.read_text().replace("labels.csv", "other.csv"))
    with pytest.raises(StorageError, match=r"manifest .* is damaged"):
        datasets.find("pets")


def test_unknown_name_error_lists_existing_names(images: Path) -> None:
    with pytest.raises(StorageError, match="no data set 'pets'; there is none yet: `mlplatform data put"):
        datasets.find("pets")
    kept = datasets.put(images, "pets")
    with pytest.raises(StorageError, match="no data set 'pet'; there are: pets"):
        datasets.find("pet")
    with pytest.raises(StorageError, match=f"no data set 'pets@ffffff'; there are: pets@{kept.digest[:12]}"):
        datasets.find("pets@ffffff")
    with pytest.raises(StorageError, match="at least 6 characters"):
        datasets.find(f"pets@{kept.digest[:3]}")


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".hidden", "two words", "a" * 101])
def test_path_like_name_is_rejected(name: str, images: Path) -> None:
    with pytest.raises(StorageError, match=re.escape(f"Invalid data set name {name!r}: use letters, digits")):
        datasets.put(images, name)


def test_odd_names_round_trip(tmp_path: Path) -> None:
    signs = ("a b.txt", "a#b.txt", "a?b.txt", "50%25.csv", "a%2Fb", "+", "&=;", "'\"", "~", "-rf", ".x")
    names = (*signs, "é", "e\u0301", "数据")
    for name in names:
        (tmp_path / "odd" / name).mkdir(parents=True)
        (tmp_path / "odd" / name / name).write_text(name)
    got = datasets.put(tmp_path / "odd", "odd").download(tmp_path / "back")
    assert contents(got) == {f"{name}/{name}": name.encode() for name in names}


@pytest.mark.parametrize("name", [b"gr\xfc\xdfe.csv", b"two\nlines", b"a\\b", b"\x7f"])
def test_name_that_no_store_keeps_is_rejected(name: bytes, images: Path, root: Path) -> None:
    Path(images, os.fsdecode(name)).write_text("1\n")
    with pytest.raises(StorageError, match="rename the file"):
        datasets.put(images, "pets")
    assert not contents(root)


def test_what_is_not_a_file_is_named(images: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (images / "empty").mkdir()
    (images / "gone").symlink_to("/nowhere/at/all")
    assert set(datasets.put(images, "pets").sums) == {"cats/1.png", "labels.csv"}
    assert f"Not stored from {images}: 'empty' (an empty folder), 'gone' (a link to nothing)." in capfd.readouterr().err


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"no file at {tmp_path / 'none'}"):
        datasets.put(tmp_path / "none", "pets")


def test_invalid_address_error_names_setting(monkeypatch: pytest.MonkeyPatch, images: Path) -> None:
    monkeypatch.setenv("MLPLATFORM_DATASETS", "gs://bucket")
    with pytest.raises(SettingsError, match="MLPLATFORM_DATASETS='gs://bucket' is neither"):
        datasets.put(images, "pets")


def test_checksums_equal_sha256sum(images: Path) -> None:
    sums = {name: checksums.sha256(path) for name, path in checksums.files_of(images).items()}
    (images / checksums.FILE).write_text(checksums.render(sums))
    subprocess.run(["sha256sum", "--check", "--strict", checksums.FILE], cwd=images, check=True, capture_output=True)
    assert checksums.parse(checksums.render(sums)) == sums


def test_progress_is_shown_only_on_terminal(images: Path) -> None:
    command = [sys.executable, "-m", "mlplatform", "data", "put", str(images), "pets"]
    watcher, terminal = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, text=True) as process:
        printed, _ = process.communicate(timeout=60)
    os.close(terminal)
    seen = os.read(watcher, 65536).decode()
    os.close(watcher)
    assert "Uploading" in seen
    assert "11/11 bytes" in seen
    assert printed.startswith("pets@")

    (images / "labels.csv").write_text("1,dog\n")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


def test_user_name_with_markup_is_listed_verbatim(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_USER", "ada [/lab] :cat:")
    datasets.put(images, "pets")
    command = [sys.executable, "-m", "mlplatform", "data", "list"]
    done = subprocess.run(command, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert "ada [/lab] :cat:" in done.stdout


def test_cli_puts_lists_and_gets_data(images: Path, tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mlplatform", "data", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    kept = run("put", str(images), "pets").stdout.split()[0]
    assert run("list").stdout.splitlines()[1].split()[:2] == [kept, "2"]
    assert run("get", kept, str(tmp_path / "back")).stdout.strip() == str(tmp_path / "back")
    assert contents(tmp_path / "back") == contents(images)
    refused = run("get", "cars", str(tmp_path / "cars"))
    assert refused.returncode == 1
    assert refused.stderr == "There is no data set 'cars'; there are: pets.\n"
