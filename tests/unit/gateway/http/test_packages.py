"""Packages at the gateway: stored completely or not at all, never replaced, and rejected with a reason."""

import asyncio
import hashlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread
import httpx
import pytest
from ray_head import BOUND_S, NO_TLS, served
from starlette.types import Receive, Scope, Send
from waiting import wait_for
from without_log_in import without_log_in

from mlplatform.errors import SettingsError, UnreachableError
from mlplatform.storage import s3
from mlplatform_gateway.errors import NoSuchPackageError
from mlplatform_gateway.http.application import application
from mlplatform_gateway.http.auth import identified
from mlplatform_gateway.packages.api import routes
from mlplatform_gateway.packages.store import Packages
from mlplatform_gateway.people.rights import Principal

NAME = "_ray_pkg_0123456789abcdef.zip"
PATH = f"/api/packages/gcs/{NAME}"
WHEEL = "pkg-0.1-py3-none-any.whl"
LIMIT = 3 << 20
SILENT_S = 0.5


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    return tmp_path / "spool"


@pytest.fixture
def packages(root: Path, spool: Path) -> Packages:
    return Packages(str(root), LIMIT, spool)


@pytest.fixture
def address(packages: Packages) -> Iterator[str]:
    with served(without_log_in(routes(packages, SILENT_S))) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=BOUND_S, verify=NO_TLS) as opened:
        yield opened


def kept(*folders: Path) -> list[str]:
    return sorted(path.name for folder in folders for path in folder.rglob("*") if path.is_file())


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def taken(packages: Packages, name: str = NAME) -> tuple[int, bytes]:
    size, stream = await packages.size_and_stream(name)
    return size, b"".join([part async for part in stream])


def test_package_upload_read_and_delete(client: httpx.Client, packages: Packages, root: Path, spool: Path) -> None:
    missing = client.get(PATH)
    assert (missing.status_code, missing.text) == (404, f"Package gcs://{NAME} does not exist")
    content = hashlib.sha256(b"seed").digest() * (LIMIT // 32)
    assert client.put(PATH, content=content).status_code == 200
    assert asyncio.run(taken(packages)) == (LIMIT, content)
    restarted = Packages(str(root), LIMIT, spool)
    assert asyncio.run(restarted.delete(NAME))
    assert asyncio.run(restarted.delete(NAME))
    assert not asyncio.run(packages.exists(NAME))
    with pytest.raises(NoSuchPackageError, match="does not exist"):
        asyncio.run(taken(packages))
    assert kept(spool) == []


def test_old_packages_without_job_are_unused(packages: Packages, root: Path) -> None:
    names = ["_ray_pkg_old.zip", "_ray_pkg_needed.zip", "_ray_pkg_asked.zip", "_ray_pkg_new.zip"]
    for name in names:
        asyncio.run(packages.put(name, pieces(b"x")))
    yesterday = time.time() - 90_000
    for name in names[:3]:
        os.utime(root / "packages" / name, (yesterday, yesterday))
    assert asyncio.run(packages.exists("_ray_pkg_asked.zip"))
    assert asyncio.run(packages.unused({"_ray_pkg_needed.zip"})) == {names[0]: 1}
    assert packages.was_requested("_ray_pkg_asked.zip")
    assert not packages.was_requested(names[0])


def test_names_of_missing_packages_are_not_remembered(client: httpx.Client, packages: Packages) -> None:
    names = [f"_ray_pkg_{number:032x}.zip" for number in range(50)]
    assert {client.get(f"/api/packages/gcs/{name}").status_code for name in names} == {404}
    assert not any(packages.was_requested(name) for name in names)


def test_package_that_is_uploaded_again_is_kept_for_its_job(packages: Packages, root: Path) -> None:
    for _ in range(2):
        asyncio.run(packages.put(NAME, pieces(b"x")))
        os.utime(root / "packages" / NAME, (0, 0))
    assert asyncio.run(packages.unused(set())) == {}
    assert not asyncio.run(packages.delete(NAME))
    assert asyncio.run(packages.exists(NAME))


def test_drafts_of_killed_process_are_removed(packages: Packages, spool: Path) -> None:
    for name in ("package-left", "package-new", "other"):
        (spool / name).write_text("x")
    (spool / "package-folder").mkdir()
    (spool / "package-folder/package").write_text("x")
    for name in ("package-left", "package-folder", "other"):
        os.utime(spool / name, (0, 0))
    packages.tidy()
    assert kept(spool) == ["other", "package-new"]


def test_existing_package_is_found_and_never_replaced(client: httpx.Client, packages: Packages) -> None:
    assert client.put(PATH, content=b"first").status_code == 200
    assert client.get(PATH).status_code == 200
    assert client.put(PATH, content=b"of other times and modes").status_code == 200
    assert asyncio.run(taken(packages)) == (5, b"first")


def test_wheel_with_same_version_and_other_content_is_rejected(client: httpx.Client, packages: Packages) -> None:
    path = f"/api/packages/gcs/{WHEEL}"
    assert client.put(path, content=b"first").status_code == 200
    assert client.get(path).status_code == 404
    assert client.put(path, content=b"first").status_code == 200
    answer = client.put(path, content=b"other")
    assert (answer.status_code, "change its version" in answer.text) == (409, True)
    assert asyncio.run(taken(packages, WHEEL)) == (5, b"first")


def test_person_without_team_uploads_nothing(packages: Packages, root: Path) -> None:
    app = application(routes(packages, SILENT_S).routes)

    async def of_alice(scope: Scope, receive: Receive, send: Send) -> None:
        await app(identified(scope, Principal("alice")), receive, send)

    with served(of_alice) as address:
        answer = httpx.put(address + PATH, content=b"x", verify=NO_TLS)
    assert (answer.status_code, "alice is in no team" in answer.text) == (403, True)
    assert kept(root) == []


def test_silent_store_leaves_threads_to_others(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(packages, "_has", lambda _: answer.wait(20))

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(packages.exists(f"_ray_pkg_{number}.zip"))
            await asyncio.sleep(0)
            async with asyncio.timeout(30):
                await anyio.to_thread.run_sync(bool)
            answer.set()

    asyncio.run(scenario())


def test_concurrent_uploads_of_same_name_create_one_package(address: str, packages: Packages) -> None:
    contents = [bytes([number]) * (1 << 20) for number in range(8)]
    url = f"{address}/api/packages/gcs/{WHEEL}"
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda content: httpx.put(url, content=content, verify=NO_TLS), contents))
    accepted = [number for number, answer in enumerate(answers) if answer.status_code == 200]
    assert [answer.status_code for answer in answers].count(409) == 7
    assert [asyncio.run(taken(packages, WHEEL))[1]] == [contents[number] for number in accepted]


@pytest.mark.parametrize(
    "name",
    [
        *("pkg.exe", "zip", ".zip", "-x.zip", "a%20b.zip", "a%2Fb.zip", "..%2F..%2Fx.zip", "a/b.zip", "a%00.zip"),
        *("é.zip", "", "a" * 252 + ".zip"),
    ],
)
def test_invalid_package_name_is_rejected(client: httpx.Client, root: Path, name: str) -> None:
    for answer in (client.get(f"/api/packages/gcs/{name}"), client.put(f"/api/packages/gcs/{name}", content=b"x")):
        assert answer.status_code == 400, answer.text
        assert "Invalid package name" in answer.text
    assert kept(root) == []


@pytest.mark.parametrize("extension", ["zip", "whl", "tar.gz", "tgz", "tar.xz"])
def test_every_package_type_of_ray_is_accepted(client: httpx.Client, extension: str) -> None:
    path = f"/api/packages/gcs/my_module-1.0+cpu.{extension}"
    assert client.put(path, content=b"x").status_code == 200


def test_other_protocols_are_rejected(client: httpx.Client, root: Path) -> None:
    answer = client.put(f"/api/packages/s3/{NAME}", content=b"x")
    assert answer.status_code == 404
    assert "s3://" in answer.text
    assert kept(root) == []


def chunks(size: int) -> Iterator[bytes]:
    for _ in range(size >> 16):
        yield bytes(1 << 16)


@pytest.mark.parametrize("size", [LIMIT + (1 << 16), 30 << 20])
def test_oversized_package_is_rejected_without_leftovers(
    client: httpx.Client, root: Path, spool: Path, size: int
) -> None:
    answers = [
        client.put(PATH, content=bytes(size)),
        client.put(PATH, content=chunks(size)),  # without Content-Length
    ]
    for answer in answers:
        assert answer.status_code == 413
        assert "larger than 3 MiB" in answer.text
    assert kept(root, spool) == []


def test_oversized_content_length_is_rejected_before_body(address: str) -> None:
    with upload(address, LIMIT + 1) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")


def test_empty_package_is_rejected(client: httpx.Client, root: Path) -> None:
    assert client.put(PATH, content=b"").status_code == 400
    assert kept(root) == []


@contextmanager
def upload(address: str, length: int, content: bytes = b"") -> Iterator[socket.socket]:
    """An open upload that has declared its length and sent `content`."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), BOUND_S) as connection:
        connection.sendall(f"PUT {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n".encode() + content)
        yield connection


def test_stalled_upload_is_ended(address: str, root: Path, spool: Path) -> None:
    with upload(address, 100, b"half") as connection:
        answer = b"".join(iter(lambda: connection.recv(65536), b""))  # until its end: it may arrive in pieces
    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert b"stalled for 0.5 s" in answer
    assert kept(root, spool) == []


def test_aborted_upload_leaves_nothing(address: str, client: httpx.Client, root: Path, spool: Path) -> None:
    with upload(address, 100, b"half"):
        wait_for(lambda: kept(spool), "the draft")
    wait_for(lambda: not kept(spool), "the end of the draft")
    assert kept(root) == []
    assert client.put(PATH, content=b"whole").status_code == 200


def test_unavailable_package_store_is_named(monkeypatch: pytest.MonkeyPatch, closed_port: int, tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setattr(s3, "_BULK_ATTEMPTS", 1)  # boto3's delays between attempts add up to 8 s
    away = Packages("s3://jobs", LIMIT)
    with served(without_log_in(routes(away, SILENT_S))) as address:
        answer = httpx.get(address + PATH, timeout=BOUND_S)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert f"http://127.0.0.1:{closed_port} does not answer" in answer.text
    with pytest.raises(UnreachableError):
        asyncio.run(away.exists(NAME))


def test_unwritable_folder_is_named(client: httpx.Client, root: Path) -> None:
    root.write_text("a file in the folder's place")
    answer = client.put(PATH, content=b"x")
    assert answer.status_code == 503
    assert str(root) in answer.text


def test_package_store_must_be_bucket_or_folder() -> None:
    with pytest.raises(SettingsError, match="MLPLATFORM_GATEWAY_STORE"):
        Packages("jobs", LIMIT)
