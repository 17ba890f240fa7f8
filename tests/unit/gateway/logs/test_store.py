"""Job logs: their contents, their stored objects, and their readers."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from log_files import DRIVER, EARLY_WORKER, NODE, SESSION, WORKER, printed, running
from without_log_in import without_log_in

from mlplatform.errors import StorageError
from mlplatform_gateway.errors import UnknownJobError
from mlplatform_gateway.http.response_headers import ResponseHeaders
from mlplatform_gateway.logs import api as http_logs
from mlplatform_gateway.logs.store import JobLogs

pytestmark = pytest.mark.timeout(60)


async def test_driver_and_worker_lines_form_one_log(logs: JobLogs) -> None:
    with pytest.raises(UnknownJobError, match="driver"):
        await printed(logs, ":job_id:01000000\nhello\n", file=WORKER)
    line = "2026-11-21 08:44:00,123\tINFO Running entrypoint for job train--1-0a1b2c: python train.py\n"
    assert await printed(logs, line) == len(line)
    with pytest.raises(UnknownJobError, match="named"):
        await printed(logs, "nothing yet\n", file=EARLY_WORKER)
    await printed(logs, ":job_id:01000000\n:task_name:f\nhello\n", file=EARLY_WORKER)
    await printed(logs, "hello\n", file=WORKER)
    assert await logs.text("train") == (
        "2026-11-21 08:44:00,123\tINFO Running entrypoint for job train: python train.py\n"
        "(f pid=4712, ray-worker-0) hello\n(pid=4711, ray-worker-0) hello\n"
    )


async def test_restarted_gateway_continues_from_store(tmp_path: Path) -> None:
    async with running(tmp_path, chunk_bytes=100) as logs:
        end = await printed(logs, "".join(f"line {number}\n" for number in range(100)))
        await printed(logs, ":actor_name:A\n", file=WORKER)
        await logs.flush()
        await logs.accept(NODE, SESSION, DRIVER, end, 7, b"lost with the gateway\n")
    async with running(tmp_path, chunk_bytes=100) as logs:
        expected = (await logs.accept(NODE, SESSION, DRIVER, 0, 7, b"")).expected
        assert expected in (end, end + len("lost with the gateway\n"))
        assert await printed(logs, "line 100\n", offset=3) == expected
        await printed(logs, "hi\n", 14, file=WORKER)
        text = await logs.text("train")
    assert [line for line in text.split("\n") if line.startswith("line")] == [f"line {n}" for n in range(100)]
    assert "(A pid=4711, ray-worker-0) hi\n" in text


async def test_each_chunk_records_offset_after_last_line(tmp_path: Path) -> None:
    async with running(tmp_path, chunk_bytes=1000) as logs:
        await printed(logs, "".join(f"{number:09d}\n" for number in range(1000)))
        await logs.flush()
    size = 0
    paths = sorted(tmp_path.rglob("*.log"))
    for path in paths:
        header, text = path.read_text().split("\n", 1)
        size += len(text)
        assert json.loads(header)["sources"][f"{NODE}/{SESSION}/{DRIVER}"]["offsets"] == [[7, size]]
    assert size == 10_000
    assert len(paths) == 11


async def test_partial_line_waits_for_newline_or_attempt_end(logs: JobLogs) -> None:
    assert await printed(logs, "one\ntw") == 4
    assert await logs.text("train") == "one\ntw"
    assert "".join([part async for part in logs.follow("train", ended=True)]) == "one\n"
    assert await printed(logs, "two\nlast words", 4) == 8
    settled = asyncio.create_task(logs.settle("train", NODE, since=100.0))
    while not logs.passes.report(NODE, 99.0):
        await asyncio.sleep(0)
    assert not logs.passes.report(NODE, 100.0)
    assert await settled
    assert await logs.text("train") == "one\ntwo\nlast words\n"
    assert (await logs.accept(NODE, SESSION, DRIVER, 0, 7, b"")).expected == 18
    assert await logs.settle("train", None, since=101.0, timeout_s=0.05)  # a node that has been silent for long
    logs.passes.report(NODE, time.time())
    assert not await logs.settle("train", None, since=time.time() + 5, timeout_s=0.05)


async def test_rotated_and_rewritten_files_start_at_offset_zero(logs: JobLogs) -> None:
    await printed(logs, "one\n")
    assert await printed(logs, "two\n", inode=8) == 4
    assert await printed(logs, "three\n", 4, inode=7) == 10
    assert (await logs.accept(NODE, SESSION, DRIVER, 0, 8, b"", restart=99)).expected == 4
    assert (await logs.accept(NODE, SESSION, DRIVER, 0, 8, b"", restart=4)).expected == 0
    await printed(logs, "4\n", inode=8)
    assert await logs.text("train") == "one\ntwo\nthree\n4\n"


async def test_long_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    lines = [f"{number:09d}" for number in range(10_000)]
    async with running(tmp_path, limit_bytes=20_000, chunk_bytes=1000) as logs:
        offset = 0
        for start in range(0, len(lines), 100):
            offset = await printed(logs, "".join(f"{line}\n" for line in lines[start : start + 100]), offset)
        await logs.close("train")
        while len(list(tmp_path.rglob("*.log"))) > 21:  # dropped chunks are deleted
            await asyncio.sleep(0.01)
    async with running(tmp_path, limit_bytes=20_000, chunk_bytes=1000) as logs:
        text = await logs.text("train")
        later = "".join([part async for part in logs.follow("train", 9_999, ended=True)])
        between = "".join([part async for part in logs.follow("train", 600, ended=True)])
    kept = text.rstrip("\n").split("\n")
    assert kept[:500] == lines[:500]
    assert kept[501:] == lines[-(len(kept) - 501) :]
    assert kept[500] == f"mlplatform: 0.1 MiB of this log ({10_000 - len(kept) + 1} lines) were omitted here."
    assert 19_000 <= len(text) <= 21_100
    assert later == f"{lines[-1]}\n"
    missing, *end = between.rstrip("\n").split("\n")
    assert missing == f"mlplatform: 0.1 MiB of this log ({10_000 - 600 - len(end)} lines) were omitted here."
    assert end == kept[501:]


async def test_readers_follow_independently_to_end(tmp_path: Path) -> None:
    async with running(tmp_path, chunk_bytes=500) as logs:
        await logs.note("train", "mlplatform: waits")
        fast, slow = logs.follow("train"), logs.follow("train", skip_lines=1)
        assert await anext(fast) == "mlplatform: waits\n"
        offset = await printed(logs, "first\n")
        started = time.monotonic()
        assert await anext(fast) == "first\n"
        assert time.monotonic() - started < 0.5
        assert await anext(slow) == "first\n"
        more = "".join(f"line {number}\n" for number in range(500))
        await printed(logs, more, offset)
        seen = ""
        while seen != more:
            seen += await anext(fast)
        await logs.close("train")
        assert [part async for part in fast] == []
        assert "".join([part async for part in slow]) == more


async def test_deleting_log_ends_its_readers(logs: JobLogs, tmp_path: Path) -> None:
    await printed(logs, "one\n")
    await logs.flush()
    follower = logs.follow("train")
    assert await anext(follower) == "one\n"
    await logs.delete("train")
    assert [part async for part in follower] == []
    assert list(tmp_path.rglob("*.log")) == []
    assert await logs.text("train") == ""


@pytest.mark.parametrize("job_id", ["..", "a/../../b", "ü x", "%2e%2e"])
async def test_job_ids_cannot_escape_log_folder(tmp_path: Path, job_id: str) -> None:
    async with running(tmp_path / "store") as logs:
        await logs.note(job_id, "hello")
        await logs.flush()
        assert await logs.text(job_id) == "hello\n"
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert path.parent.parent == tmp_path / "store" / "logs"


async def test_rejected_requests_get_reason_and_gateway_instance(logs: JobLogs) -> None:
    app = ResponseHeaders(without_log_in(http_logs.shipper_routes(logs)), always={http_logs.INSTANCE: logs.instance})
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:

        async def put(path: str, body: bytes = b"one\n", **query: Any) -> httpx.Response:
            query = {"session": SESSION, "offset": 0, "inode": 7, **query}
            answer = await client.put(f"/platform/logs/{path}", params=query, content=body)
            assert answer.headers["X-Gateway-Instance"] == logs.instance
            return answer

        file = f"{NODE}/{DRIVER}"
        assert (await put(file)).json() == {"expected": 4}
        assert ((answer := await put(file, offset=9)).status_code, answer.json()) == (409, {"expected": 4})
        wrong = [{"session": "../x"}, {"session": ""}, {"offset": -1}, {"offset": 1 << 63}, {"inode": "x"}]
        wrong += [{"restart": "1e3"}]
        for path, query in [(f"%2e%2e/{DRIVER}", {}), (f"a%20b/{DRIVER}", {}), *((file, query) for query in wrong)]:
            answer = await put(path, **query)
            assert answer.status_code == 400, (path, query)
            assert answer.text.startswith("Invalid "), answer.text
        assert (await put(file, b"x" * ((1 << 20) + 1), offset=4)).status_code == 413
        assert (await put(f"{NODE}/job-driver-other--1-000000.log")).status_code == 404
        assert (await put(f"{NODE}/raylet.out")).status_code == 404
        assert (await put(f"{NODE}/job-driver-gone--1-000000.log")).status_code == 410

        node = f"/platform/logs/{NODE}"
        for body in ("", "[]", "{}", '{"pass_started": "x"}', '{"pass_started": NaN}', "[" * 100_000):
            assert (await client.post(node, content=body)).status_code == 400, body[:20]
        before = {"pass_started": 1.0, "instance": "another one"}
        assert (await client.post(node, json=before)).json() == {"again": True}
        now = {"pass_started": 1.0, "instance": logs.instance}
        assert (await client.post(node, json=now)).json() == {"again": False}


async def test_unreadable_log_raises_storage_error(tmp_path: Path) -> None:
    async with running(tmp_path, chunk_bytes=10) as logs:
        await printed(logs, "one line of text\nand another one\n")
        await logs.flush()
        for path in tmp_path.rglob("*.log"):
            path.unlink()
        with pytest.raises(StorageError):
            await logs.text("train")
