"""A replaced attempt cannot write checkpoints, in a real folder and in S3."""

import gc
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mlplatform.errors import FencedError, StorageError, UnreachableError
from mlplatform.settings import job
from mlplatform.storage import addresses, fence, filesystem, upload
from mlplatform.storage.filesystem import _SMALL_BYTES

Become = Callable[[int], None]
REPLACED = "Attempt 1 of job steps was replaced by attempt 2; it can no longer write."


@pytest.fixture
def folder(become: Become, tmp_path: Path) -> Path:
    """The folder of the job's checkpoints."""
    made = tmp_path / "storage" / "steps"
    made.mkdir(parents=True)
    return made


def test_only_latest_attempt_may_write(become: Become, replace: Callable[[], None]) -> None:
    fence.check()
    replace()
    with pytest.raises(FencedError) as error:
        fence.check()
    assert str(error.value) == REPLACED
    become(2)
    fence.check()
    become(3)
    fence.check()


def test_replaced_attempt_stays_replaced(replace: Callable[[], None]) -> None:
    replace()
    with pytest.raises(FencedError):
        fence.check()
    fence.allow("steps", 1)
    with pytest.raises(FencedError):
        fence.check()


def test_process_without_attempt_reads_no_fence(monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    fence.check()
    monkeypatch.setenv("MLPLATFORM_JOB_ID", "steps")
    job.settings.cache_clear()
    fence.check()


def test_invalid_fence_content_is_named(folder: Path) -> None:
    (folder / "attempt").write_text("two")
    with pytest.raises(StorageError, match="steps/attempt holds 'two'"):
        fence.check()


def test_suspended_process_rechecks_fence_on_resume(folder: Path) -> None:
    program = """
import time
from mlplatform.storage import fence
fence.check()
print("may write", flush=True)
while True:
    try:
        fence.check()
    except Exception as error:
        print(error, flush=True)
        break
    time.sleep(0.001)
"""
    import signal

    with subprocess.Popen([sys.executable, "-c", program], stdout=-1, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "may write\n"
        process.send_signal(signal.SIGSTOP)
        fence.allow("steps", 2)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline().strip() == REPLACED


@pytest.mark.parametrize(
    "write",
    [
        lambda files, at: files.open_output_stream(f"{at}/new"),
        lambda files, at: files.open_append_stream(f"{at}/old"),
        lambda files, at: files.create_dir(f"{at}/sub/folder"),
        lambda files, at: files.delete_file(f"{at}/old"),
        lambda files, at: files.delete_dir(at),
        lambda files, at: files.delete_dir_contents(at),
        lambda files, at: files.move(f"{at}/old", f"{at}/new"),
        lambda files, at: files.copy_file(f"{at}/old", f"{at}/new"),
    ],
)
def test_replaced_attempt_cannot_write_checkpoints(
    write: Callable[[Any, str], Any], folder: Path, replace: Callable[[], None]
) -> None:
    (folder / "fit").mkdir()
    (folder / "fit" / "old").write_text("1")
    files, path = filesystem.filesystem(str(folder / "fit"))
    replace()
    with pytest.raises(FencedError, match="was replaced by attempt 2"):
        write(files, path)
    assert [file.name for file in (folder / "fit").iterdir()] == ["old"]
    assert files.open_input_stream(f"{path}/old").read() == b"1", "reading was rejected"


def test_file_started_before_replacement_is_not_finished(folder: Path, replace: Callable[[], None]) -> None:
    (folder / "snapshot.json").write_text("the second attempt's")
    files, path = filesystem.filesystem(str(folder))
    stream = files.open_output_stream(f"{path}/snapshot.json")
    stream.write(b"the first attempt's")
    replace()
    with pytest.raises(FencedError):
        stream.close()
    assert (folder / "snapshot.json").read_text() == "the second attempt's"


@pytest.mark.parametrize("size", [0, 1, _SMALL_BYTES, _SMALL_BYTES + 1, 3 * _SMALL_BYTES])
def test_file_of_any_size_arrives_complete(size: int, folder: Path) -> None:
    files, path = filesystem.filesystem(str(folder))
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    kept = list(filesystem._abandoned)
    with pickle.loads(pickle.dumps(files)).open_output_stream(f"{path}/file") as stream:  # noqa: S301 - our own
        for start in range(0, size, 1 << 20):
            stream.write(data[start : start + (1 << 20)])
        assert stream.tell() == size
    assert (folder / "file").read_bytes() == data
    assert filesystem._abandoned == kept, "the stream is kept in memory"


def test_interrupted_write_keeps_previous_file(folder: Path) -> None:
    path = folder / "snapshot.json"
    path.write_text("{}")
    program = f"""
import resource, sys
from mlplatform.storage import filesystem
files, path = filesystem.filesystem({str(folder)!r})
# The system ends each write after its fifth byte.
resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5))
with files.open_output_stream(path + "/snapshot.json") as file:
    file.write(b'{{"epoch": 12}}')
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "File too large" in done.stderr
    assert [found.name for found in folder.iterdir() if found.is_file() and found.name != "attempt"] == [path.name]
    assert path.read_text() == "{}"


def test_folder_of_many_files_is_copied(folder: Path, tmp_path: Path) -> None:
    from pyarrow.fs import LocalFileSystem, copy_files

    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    for number in range(20):
        (source / "below" / str(number)).write_bytes(bytes([number]) * (number << 18))
    files, path = filesystem.filesystem(str(folder))
    copy_files(str(source), path, LocalFileSystem(), files)
    for number in range(20):
        assert (folder / "below" / str(number)).read_bytes() == bytes([number]) * (number << 18)


class Bucket:
    """The part of S3's HTTP API that boto3 uploads and pyarrow reads need; objects by key, in the order of writing."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refusals = 0
        self.after_part: Callable[[], None] = lambda: None
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def respond(self) -> None:
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                # pyarrow sends a part in chunks.
                while self.headers.get("Transfer-Encoding") == "chunked" and (
                    size := int(self.rfile.readline().partition(b";")[0], 16)
                ):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                status, answer = bucket.answer(self.command, url.path.removeprefix("/ray/"), url.query, body)
                self.send_response(status)
                self.send_header("ETag", '"1"')
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = respond  # noqa: N815 - the names are http.server's

            def log_message(self, *arguments: object) -> None:
                """Keep the tests' output clean."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, method: str, key: str, query: str, body: bytes) -> tuple[int, bytes]:
        if self.refusals:
            self.refusals -= 1
            return 503, b"<Error><Code>ServiceUnavailable</Code></Error>"
        if method == "POST" and "uploadId" not in query:
            return 200, b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
        if "partNumber" in query:
            self.after_part()
            return 200, b""
        if method == "DELETE":
            return 204, b""
        if method in ("PUT", "POST"):
            self.objects[key] = body
            return 200, b"<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"
        if key not in self.objects:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>"
        return 200, self.objects[key]


@pytest.fixture
def bucket(become: Become, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket that is the platform's storage."""
    made = Bucket()
    (tmp_path / "aws").write_text("[default]\naws_access_key_id = someone\naws_secret_access_key = something\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws"))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{made.server.server_port}")
    # Another prefix for each test, because pyarrow caches connections by address.
    monkeypatch.setenv("MLPLATFORM_STORAGE", f"s3://ray/{tmp_path.name}")
    become(1)
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_s3_fence_round_trips(bucket: Bucket) -> None:
    assert fence.allowed("steps") is None
    fence.allow("steps", 12)
    assert fence.allowed("steps") == 12


def test_s3_upload_started_before_replacement_is_not_completed(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "a").write_bytes(b"whole")
    (tmp_path / "checkpoint" / "b").write_bytes(bytes(20 << 20))

    def replaced_meanwhile() -> None:
        bucket.objects[urlsplit(fence.uri("steps")).path.removeprefix("/")] = b"2"
        time.sleep(fence._VALID_SECONDS)

    bucket.after_part = replaced_meanwhile
    with pytest.raises(FencedError):
        upload.upload(tmp_path / "checkpoint", addresses.checkpoint_uri("fit"))
    assert [key.rpartition("/")[2] for key in bucket.objects] == ["a", "attempt"]


def test_copy_stopped_by_fence_keeps_previous_s3_object(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow.fs import LocalFileSystem, copy_files

    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "model").write_bytes(bytes(20 << 20))
    key = f"{urlsplit(addresses.checkpoint_uri('fit')).path.removeprefix('/')}/model"
    bucket.objects[key] = b"the second attempt's"
    checks = 0

    def replaced_meanwhile() -> None:
        nonlocal checks
        checks += 1
        if checks > 8:
            raise FencedError(REPLACED)

    files, path = filesystem.filesystem(addresses.checkpoint_uri("fit"))
    monkeypatch.setattr(fence, "check", replaced_meanwhile)
    with pytest.raises(FencedError):
        copy_files(str(tmp_path / "checkpoint"), path, LocalFileSystem(), files)
    gc.collect()
    assert bucket.objects[key] == b"the second attempt's"


def test_fence_check_waits_out_storage_outage(
    bucket: Bucket, replace: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlplatform.storage.retry._PAUSE_SECONDS", 0.01)
    replace()
    bucket.refusals = 1000
    with pytest.raises(UnreachableError, match=r"Cannot read from .* which attempt may write"):
        fence.check(wait=False)
    bucket.refusals = 8
    with pytest.raises(FencedError):
        fence.check()
