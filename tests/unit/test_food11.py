"""`make data` with good and broken archives of Food-11."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import stand_in

CHECKOUT = Path(__file__).parents[2]
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


def fill(source: Path | str, volume: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECKOUT / "jobs/food11/fill.py"), str(source), f"--folder={volume / 'Food-11'}"]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def kept(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["zip", "tar", "gztar"])
def test_photos_are_sorted_by_class(published: Path, volume: Path, tmp_path: Path, kind: str) -> None:
    filled = fill(shutil.make_archive(str(tmp_path / "food"), kind, published), volume)
    assert "22 photos for training" in filled.stdout, filled.stderr
    files = kept(volume / "Food-11")
    assert len(files) == 11 * sum(COUNTS.values())
    for number in range(11):
        original = published / "Food-11" / "training" / f"{number}_1.jpg"
        assert files[Path("training", f"class_{number:02d}", "1.jpg")] == original.read_bytes()
    assert {path.name for path in volume.iterdir()} == {"Food-11", "lost+found"}


def test_archive_sorted_by_class_is_kept_unchanged(volume: Path, tmp_path: Path) -> None:
    ordered = stand_in.write(tmp_path / "ordered", COUNTS, size=16)
    assert fill(shutil.make_archive(str(tmp_path / "food"), "zip", ordered), volume).returncode == 0
    assert kept(volume / "Food-11") == kept(ordered)


def test_filled_volume_is_replaced_only_by_force(archive: Path, volume: Path, tmp_path: Path) -> None:
    fill(archive, volume)
    mark = volume / "Food-11" / "training" / "class_00" / "mine.jpg"
    mark.touch()
    assert "already contains 23 photos for training" in fill("", volume).stdout
    (tmp_path / "broken.zip").write_bytes(b"<html>")
    assert fill(tmp_path / "broken.zip", volume, "--force").returncode
    assert mark.exists(), "a rejected archive changed the volume"
    assert fill(archive, volume, "--force").returncode == 0
    assert not mark.exists()
    assert {path.name for path in volume.iterdir()} == {"Food-11", "lost+found"}


def refused(source: Path | str, volume: Path) -> str:
    """Return the error message, after checking that the failed attempt left nothing."""
    failed = fill(source, volume)
    assert failed.returncode
    assert [path.name for path in volume.iterdir()] == ["lost+found"]
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    return failed.stderr


@pytest.mark.parametrize("kind", ["zip", "tar", "gztar"])
def test_truncated_archive_is_rejected(published: Path, volume: Path, tmp_path: Path, kind: str) -> None:
    whole = Path(shutil.make_archive(str(tmp_path / "food"), kind, published))
    with whole.open("r+b") as file:
        file.truncate(whole.stat().st_size // 2)
    assert f"{whole} is damaged" in refused(whole, volume)


def test_archive_of_something_else_is_rejected(archive: Path, volume: Path, tmp_path: Path) -> None:
    (page := tmp_path / "page.zip").write_text("<html>log in first</html>")
    assert f"{page} is damaged" in refused(page, volume)
    assert "There is no archive 'nothing.zip'" in refused("nothing.zip", volume)
    with zipfile.ZipFile(archive) as whole, zipfile.ZipFile(tmp_path / "part.zip", "w") as part:
        for name in whole.namelist():
            if "validation/7_" not in name:
                part.writestr(name, whole.read(name))
    assert "no photos of validation/class_07" in refused(tmp_path / "part.zip", volume)


def test_files_never_leave_volume(archive: Path, volume: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive, "a") as zipped:
        zipped.writestr("../../../training/0_9.jpg", b"")
    assert fill(archive, volume).returncode == 0
    assert not [path for path in tmp_path.rglob("9.jpg") if not path.is_relative_to(volume / "Food-11")]
    assert not list(tmp_path.rglob("0_9.jpg"))


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
    assert fill(f"{server}/food.zip?key=secret", volume).returncode == 0
    assert len(kept(volume)) == 11 * sum(COUNTS.values())


def test_failed_or_truncated_download_is_rejected(server: str, volume: Path) -> None:
    message = refused(f"{server}/other.zip?key=secret", volume)
    assert f"{server}/other.zip could not be downloaded (HTTP Error 404" in message
    assert "secret" not in message
    assert "is damaged" in refused(f"{server}/short/food.zip", volume)
    assert "could not be downloaded" in refused("http://127.0.0.1:9/food.zip", volume)


def test_make_data_mounts_local_archive(archive: Path, tmp_path: Path) -> None:
    """As docker gets it, whose commands a program records."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text('#!/bin/sh\necho "$*" >>"$CALLS"\n')
    (tmp_path / "bin" / "docker").chmod(0o755)
    (tmp_path / "platform").mkdir()
    (tmp_path / "compose").mkdir()
    (tmp_path / "compose" / "stack.generated.yaml").touch()
    for name in ("Makefile", "platform/compose.sh", ".env.example"):
        shutil.copy(CHECKOUT / name, tmp_path / name)
    (tmp_path / ".env").write_text("FOOD11_VOLUME=photos\n")
    (tmp_path / "two words").mkdir()
    local = shutil.move(archive, tmp_path / "two words")
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    calls: list[str] = []
    for source in (local, "https://example.org/food.zip"):
        environment = {"PATH": path, "CALLS": str(tmp_path / "calls")}
        # Without `make env`, which needs a whole checkout.
        make = ["make", "--silent", "--old-file=env", "data", f"SRC={source}", "FORCE=1"]
        subprocess.run(make, cwd=tmp_path, env=environment, check=True)
        calls = (tmp_path / "calls").read_text().splitlines()
        (tmp_path / "calls").unlink()
        assert "volume create photos" in calls
        mounted = f" --volume {local}:/host{local}:ro" if source == local else ""
        assert calls[-1].endswith(f"run --rm{mounted} food11-data {'/host' if mounted else ''}{source} --force")
