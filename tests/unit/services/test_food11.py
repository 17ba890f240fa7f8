"""`make data` with good, broken and malicious archives of Food-11."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import stand_in

from mlplatform.errors import PlatformError, StorageError, UnreachableError
from mlplatform.services import food11
from mlplatform.stack import compose

COUNTS = {"training": 2, "validation": 1, "evaluation": 1}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Contents of an archive, with the published one's file names."""
    folder = tmp_path_factory.mktemp("published")
    stand_in.write(folder / "Food-11", COUNTS, size=16, original=True)
    (folder / "Food-11" / "README.txt").write_text("no photo")
    return folder


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume that is empty except for file system artifacts."""
    (tmp_path / "volume" / "lost+found").mkdir(parents=True)
    return tmp_path / "volume"


@pytest.fixture
def archive(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.make_archive(str(tmp_path / "food"), "zip", published))


def kept(volume: Path) -> dict[Path, bytes]:
    return {path.relative_to(volume): path.read_bytes() for path in volume.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["zip", "tar", "gztar", "xztar"])
def test_photos_are_sorted_by_class(published: Path, volume: Path, tmp_path: Path, kind: str) -> None:
    food11.fill(shutil.make_archive(str(tmp_path / "food"), kind, published), volume / "Food-11")
    files = kept(volume)
    assert len(files) == 11 * sum(COUNTS.values())
    assert {path.parts[:3] for path in files} == {
        ("Food-11", part, f"class_{number:02d}") for part in COUNTS for number in range(11)
    }
    for number in range(11):
        original = published / "Food-11" / "training" / f"{number}_1.jpg"
        assert files[Path("Food-11", "training", f"class_{number:02d}", "1.jpg")] == original.read_bytes()


def test_archive_sorted_by_class_is_kept_unchanged(volume: Path, tmp_path: Path) -> None:
    ordered = stand_in.write(tmp_path / "ordered", COUNTS, size=16)
    food11.fill(shutil.make_archive(str(tmp_path / "food"), "zip", ordered), volume / "Food-11")
    assert kept(volume / "Food-11") == kept(ordered)


def test_filled_volume_is_replaced_only_by_force(
    archive: Path, volume: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = volume / "Food-11"
    assert food11.fill(str(archive), folder) == {part: 11 * count for part, count in COUNTS.items()}
    assert "not the published data set, which has 9,866 photos for training" in capsys.readouterr().out
    mark = folder / "training" / "class_00" / "mine.jpg"
    mark.touch()
    food11.fill("", folder)
    assert "already contains 23 photos for training" in capsys.readouterr().out
    assert mark.exists()
    (broken := tmp_path / "broken.zip").write_bytes(b"<html>")
    with pytest.raises(StorageError):
        food11.fill(str(broken), folder, force=True)
    assert mark.exists(), "a rejected archive changed the volume"
    food11.fill(str(archive), folder, force=True)
    assert not mark.exists()
    assert {path.name for path in volume.iterdir()} == {"Food-11", "lost+found"}


def refused(source: Path | str, volume: Path) -> str:
    """Return the error message, after checking that the failed attempt left nothing."""
    with pytest.raises(PlatformError) as refusal:
        food11.fill(str(source), volume / "Food-11")
    assert [path.name for path in volume.iterdir()] == ["lost+found"]
    assert len(str(refusal.value).splitlines()) == 1
    return str(refusal.value)


@pytest.mark.parametrize("kind", ["zip", "tar", "gztar"])
def test_truncated_archive_is_rejected(published: Path, volume: Path, tmp_path: Path, kind: str) -> None:
    whole = Path(shutil.make_archive(str(tmp_path / "food"), kind, published))
    with whole.open("r+b") as file:
        file.truncate(whole.stat().st_size // 2)
    assert f"{whole.name} was rejected: it" in refused(whole, volume)


def test_archive_with_changed_byte_is_rejected(archive: Path, volume: Path) -> None:
    with zipfile.ZipFile(archive) as zipped:
        entry = next(entry for entry in zipped.infolist() if entry.filename.endswith("training/5_0.jpg"))
    with archive.open("r+b") as file:
        file.seek(entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2)
        file.write(b"\0\0\0\0")
    assert "food.zip was rejected: it is damaged" in refused(archive, volume)


# Offsets in an entry of a zip's directory: the flags and the compression method.
@pytest.mark.parametrize(
    ("offset", "value", "expected"),
    [(8, 1, "password"), (10, 99, "compression")],
    ids=["password", "unknown compression"],
)
def test_unsupported_archive_is_rejected(archive: Path, volume: Path, offset: int, value: int, expected: str) -> None:
    content = bytearray(archive.read_bytes())
    for entry in re.finditer(rb"PK\x01\x02", content):
        content[entry.start() + offset] = value
    archive.write_bytes(content)
    message = refused(archive, volume)
    assert "food.zip was rejected: it is damaged" in message
    assert expected in message


def test_non_archive_is_rejected(volume: Path, tmp_path: Path) -> None:
    (page := tmp_path / "page.zip").write_text("<html>log in first</html>")
    assert refused(page, volume) == "page.zip was rejected: it is neither a zip nor a tar archive."
    assert refused(tmp_path / "nothing.zip", volume) == (
        f"The archive {tmp_path / 'nothing.zip'} does not exist: set SRC to its address or path."
    )
    assert "make data SRC=" in refused("", volume)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("../../training/0_9.jpg", b"", r"leads out of the folder"),
        ("/etc/training/0_9.jpg", b"", r"leads out of the folder"),
        ("..\\training\\0_9.jpg", b"", r"leads out of the folder"),
        ("Food-11/training/0_9.jpg", b"no photo", r"0_9.jpg in it is not a readable photo"),
        ("Food-11/training/11_0.jpg", b"", r"none of the 11 classes"),
        ("Food-11/training/apple.jpg", b"", r"none of the 11 classes"),
        ("again/training/0_0.jpg", b"", r"it contains training/class_00/0.jpg 2 times"),
    ],
)
def test_single_bad_file_is_named(archive: Path, volume: Path, name: str, content: bytes, message: str) -> None:
    with zipfile.ZipFile(archive, "a") as zipped:
        zipped.writestr(name, content)
    assert message in refused(archive, volume)


def test_tar_with_link_is_rejected(published: Path, volume: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "food.tar", "w") as tar:
        tar.add(published, ".")
        link = tarfile.TarInfo("training/0_9.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link, io.BytesIO())
    assert "training/0_9.jpg in it is not a regular file" in refused(tmp_path / "food.tar", volume)


def test_archive_with_missing_class_is_rejected(published: Path, volume: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "food.zip", "w") as zipped:
        for path in published.rglob("*.jpg"):
            if not (path.parent.name == "validation" and path.name.startswith("7_")):
                zipped.write(path, path.relative_to(published))
    assert refused(tmp_path / "food.zip", volume) == "food.zip was rejected: it has no photos of validation/class_07."


@pytest.fixture
def server(archive: Path) -> Iterator[str]:
    """A server of the archive's folder; `/short/` sends half of a file."""

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith("/short/"):
                return super().do_GET()
            content = archive.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            return None

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=archive.parent)) as httpd:
        Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def test_archive_is_downloaded_from_url(server: str, volume: Path) -> None:
    food11.fill(f"{server}/food.zip?key=secret", volume / "Food-11")
    assert len(kept(volume)) == 11 * sum(COUNTS.values())


def test_failed_or_truncated_download_is_rejected(server: str, volume: Path) -> None:
    assert refused(f"{server}/other.zip?key=secret", volume) == (
        f"{server}/other.zip answered 404: set SRC to another address."
    )
    assert "could not be downloaded" in refused(f"{server}/short/food.zip", volume)
    assert "could not be downloaded" in refused("http://127.0.0.1:9/food.zip", volume)
    with pytest.raises(UnreachableError):
        food11.fill(f"{server}/other.zip", volume / "Food-11")


def test_make_data_mounts_local_archive(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(compose.subprocess, "run", run)
    monkeypatch.chdir(archive.parent)
    example = (Path(__file__).parents[3] / ".env.example").read_text()
    (tmp_path / ".env").write_text(f"{example}\nMLPLATFORM_VERSION=0\n")
    assert compose.fill_food11(tmp_path, "food.zip", force=True) == 3
    assert commands[0] == ["docker", "volume", "create", "food11"]
    shown = ["--volume", f"{archive}:/archive/food.zip:ro"]
    assert commands[1][-7:] == ["run", "--rm", *shown, "food11-data", "/archive/food.zip", "--force"]
    compose.fill_food11(tmp_path, "https://example.org/food.zip", force=False)
    assert commands[3][-4:] == ["run", "--rm", "food11-data", "https://example.org/food.zip"]
