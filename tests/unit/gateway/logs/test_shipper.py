"""Shipping logs from nodes to a gateway: real files, a real shipper, and a real server that is killed meanwhile."""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from log_files import DRIVER, EARLY_WORKER, SESSION, WORKER, Gateway, append, logs_of, shipped
from waiting import until

from mlplatform.settings import environment as settings_environment
from mlplatform_gateway.logs import shipper as logs_shipper
from mlplatform_gateway.logs import wakeups
from mlplatform_gateway.logs.shipper import LogShipper

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "nodes").mkdir()
    return tmp_path / "nodes"


@pytest.fixture
def stopped(tmp_path: Path, closed_port: int) -> Gateway:
    """A gateway that does not run yet."""
    return Gateway(tmp_path / "store", closed_port, chunk_bytes=4096)


@pytest.fixture
async def gateway(stopped: Gateway, root: Path) -> AsyncIterator[Gateway]:
    """A running gateway, and a shipper that sends it the files below `root`."""
    async with shipped(stopped, root):
        yield stopped


async def test_lines_of_new_nodes_arrive_within_one_second(root: Path, gateway: Gateway) -> None:
    await until(lambda: gateway.requests == [])
    folder = logs_of(root)
    append(folder / DRIVER, b"starts\n")
    append(folder / "raylet.out", b"not of a job\n")
    await gateway.until_log("starts\n")
    follower = gateway.logs.follow("train")
    assert await anext(follower) == "starts\n"
    waits = []
    for number in range(3):
        started = time.monotonic()
        append(folder / DRIVER, b"epoch %d\n" % number)
        assert await anext(follower) == f"epoch {number}\n"
        waits.append(time.monotonic() - started)
    assert sorted(waits)[1] < 0.9, waits

    (root / "ray-worker-1").mkdir()
    append(logs_of(root / ".", "ray-worker-2") / WORKER, b":actor_name:Trainer\nhello\n")
    assert await anext(follower) == "(Trainer pid=4711, ray-worker-2) hello\n"


async def test_file_moved_to_old_is_read_completely(root: Path, gateway: Gateway) -> None:
    folder = logs_of(root)
    (folder / "old").mkdir()
    append(folder / DRIVER, b"d\n")
    append(folder / WORKER, b"one\n")
    await gateway.until_log("d\n(pid=4711, ray-worker-0) one\n")
    append(folder / WORKER, b"two\n")
    (folder / WORKER).rename(folder / "old" / WORKER)
    await gateway.until_log("d\n(pid=4711, ray-worker-0) one\n(pid=4711, ray-worker-0) two\n")


async def test_lines_after_evicted_partial_line_are_not_lost(root: Path, gateway: Gateway) -> None:
    folder = logs_of(root)
    append(folder / DRIVER, b"one\nepoch 1: 37%")
    await gateway.until_log("one\nepoch 1: 37%")
    job = gateway.logs._jobs["train"]
    await until(lambda: any(file.partial for file in job.files.values()))
    job.flush_partial_lines()  # as after ten minutes in which nobody has read the log
    append(folder / DRIVER, b"\nTraceback\n")
    await gateway.until_log("one\nepoch 1: 37%\n\nTraceback\n")


async def test_pipe_in_place_of_log_does_not_block_other_logs(root: Path, gateway: Gateway) -> None:
    folder = logs_of(root)
    append(folder / DRIVER, b"d\n")
    await gateway.until_log("d\n")
    listed = LogShipper._list

    def swap_after_listing(shipper: LogShipper) -> set[str]:
        nodes = listed(shipper)
        if (folder / WORKER).is_file() and not (folder / WORKER).is_fifo():
            (folder / WORKER).unlink()
            os.mkfifo(folder / WORKER)
        return nodes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogShipper, "_list", swap_after_listing)
        append(folder / WORKER, b"swapped\n")
        await until(lambda: (folder / WORKER).is_fifo())
        append(folder / DRIVER, b"e\n")
        await gateway.until_log("d\ne\n")


async def test_linked_folders_and_files_are_not_sent(root: Path, gateway: Gateway, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    append(elsewhere / WORKER, b"of another folder\n")
    folder = logs_of(root)
    (folder / "old").symlink_to(elsewhere)
    (folder / EARLY_WORKER).symlink_to(elsewhere / WORKER)
    (root / "ray-worker-1" / SESSION).mkdir(parents=True)
    (root / "ray-worker-1" / SESSION / "logs").symlink_to(elsewhere)
    append(folder / DRIVER, b"d\n")
    await gateway.until_log("d\n")
    assert await gateway.logs.settle("train", "ray-worker-0", time.time())
    assert {request.rpartition("/")[2] for request in gateway.requests if "PUT" in request} == {DRIVER}


async def test_rotated_and_rewritten_files_are_read_exactly_once(root: Path, gateway: Gateway) -> None:
    folder = logs_of(root)
    append(folder / DRIVER, b"d\n")
    await gateway.until_log("d\n")
    for number in range(6):
        append(folder / WORKER, b"line %d\n" % number)
        if number % 2:
            for age in (3, 2, 1, 0):
                source = folder / (WORKER.replace(".out", f".{age}.out") if age else WORKER)
                if source.exists():
                    source.rename(folder / WORKER.replace(".out", f".{age + 1}.out"))
    append(folder / WORKER, b"line 6\n")
    expected = "d\n" + "".join(f"(pid=4711, ray-worker-0) line {number}\n" for number in range(7))
    await gateway.until_log(expected)
    (folder / WORKER).write_bytes(b"7\n")
    await gateway.until_log(f"{expected}(pid=4711, ray-worker-0) 7\n")


async def test_repeated_gateway_kills_keep_lines_exactly_once(root: Path, gateway: Gateway) -> None:
    rng = random.Random(5)  # noqa: S311 - the same moments in each run
    counts = {DRIVER: 3000, WORKER: 2000, EARLY_WORKER: 1000}

    async def write(path: Path, count: int) -> None:
        data = (b"" if path.name == DRIVER else b":job_id:01000000\n:actor_name:A\n") + b"".join(
            b"\x1b[32m%s %05d \xc3\xa9\x1b[0m\n" % (path.name[-8:-4].encode(), number) for number in range(count)
        )
        while data:
            size = rng.randrange(1, 4000)
            append(path, data[:size])
            data = data[size:]
            await asyncio.sleep(rng.random() * 0.04)

    folder = logs_of(root)
    writers = asyncio.gather(*(write(folder / name, count) for name, count in counts.items()))
    for _ in range(3):
        await asyncio.sleep(rng.uniform(0.2, 0.4))
        await gateway.kill()
        await asyncio.sleep(rng.uniform(0, 0.2))
        await gateway.start()
    await writers

    async def complete() -> bool:
        return (await gateway.logs.text("train")).count("\n") >= sum(counts.values())

    await until(complete, 15)
    assert await gateway.logs.settle("train", "ray-worker-0", time.time())
    lines = (await gateway.logs.text("train")).rstrip("\n").split("\n")
    for name, prefix in ((DRIVER, ""), (WORKER, "(A pid=4711, "), (EARLY_WORKER, "(A pid=4712, ")):
        mine = [line for line in lines if line.startswith(prefix) and (prefix or line[0] != "(")]
        assert [int(line.split()[-2]) for line in mine] == list(range(counts[name])), name
        assert all(line.endswith(" é") for line in mine)
    assert len(lines) == sum(counts.values())


async def test_settled_attempt_has_all_lines_of_its_node(root: Path, gateway: Gateway) -> None:
    """This includes lines of a Ray job that was registered only just before, and a line without a newline."""
    del gateway.known["01000000"]
    folder = logs_of(root)
    append(folder / DRIVER, b"d\n")
    append(folder / WORKER, b"of a job that is not known yet\n")
    await until(lambda: any(WORKER in request for request in gateway.requests))
    await gateway.until_log("d\n")
    gateway.known["01000000"] = "train"
    append(folder / DRIVER, b"exit")
    started = time.monotonic()
    assert await gateway.logs.settle("train", "ray-worker-0", time.time())
    assert time.monotonic() - started < 1.8
    text = await gateway.logs.text("train")
    assert sorted(text.split("\n")) == ["", "(pid=4711, ray-worker-0) of a job that is not known yet", "d", "exit"]


async def test_end_of_job_requests_pass(root: Path, stopped: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "HEARTBEAT_SECONDS", 3600)
    folder = logs_of(root)
    async with shipped(stopped, root):
        await until(lambda: "POST /platform/logs/ray-worker-0" in stopped.requests)
        append(folder / DRIVER, b"the end")
        assert await stopped.logs.settle("train", "ray-worker-0", time.time())
        await stopped.until_log("the end\n")
        assert await stopped.logs.settle("train", "ray-worker-0", time.time())


async def test_request_for_other_nodes_is_not_answered(root: Path, gateway: Gateway) -> None:
    logs_of(root)
    await until(lambda: "POST /platform/logs/ray-worker-0" in gateway.requests)
    waiting = asyncio.create_task(gateway.logs.settle("train", "ray-worker-1", time.time(), timeout_s=0.5))
    assert not await gateway.logs.passes.wait_for_request(["ray-worker-0"], 0.1)
    assert await gateway.logs.passes.wait_for_request(["ray-worker-0", "ray-worker-1"], 0.1)
    assert not await waiting


async def test_files_without_job_are_queried_rarely(root: Path, gateway: Gateway) -> None:
    gateway.known["gone--1-000000"] = "gone"
    folder = logs_of(root)
    names = {kind: f"job-driver-{kind}--1-000000.log" for kind in ("unknown", "gone", "aged", "still", "ancient")}
    for name in names.values():
        append(folder / name, b"x\n")
    os.utime(folder / names["aged"], (time.time() - 100,) * 2)
    os.utime(folder / names["still"], (time.time() - 700,) * 2)
    os.utime(folder / names["ancient"], (time.time() - 25 * 3600,) * 2)

    def asked(kind: str) -> int:
        return sum(names[kind] in request for request in gateway.requests)

    await until(lambda: asked("unknown") == 2)
    for number in range(10):
        append(folder / DRIVER, b"%d\n" % number)
        await gateway.until_log("".join(f"{line}\n" for line in range(number + 1)))
    assert [asked(kind) for kind in ("gone", "aged", "still", "ancient")] == [1, 1, 1, 0]
    assert asked("unknown") <= 3
    assert await gateway.logs.settle("train", "ray-worker-0", time.time())
    assert asked("aged") == 1
    append(folder / names["still"], b"it speaks again\n")
    await until(lambda: asked("still") == 2)


async def test_files_of_one_unknown_ray_job_are_queried_as_one(root: Path, stopped: Gateway) -> None:
    folder = logs_of(root)
    for number in range(20):
        append(folder / f"worker-{number:056x}-05000000-{number}.out", b"x\n")
    async with shipped(stopped, root):
        await until(lambda: sum("05000000" in request for request in stopped.requests) > 0)
        assert await stopped.logs.settle("train", "ray-worker-0", time.time())
        assert sum("05000000" in request for request in stopped.requests) <= 3
        stopped.known["05000000"] = "train"
        append(folder / DRIVER, b"d\n")
        await stopped.until_log("d\n" + "".join(f"(pid={number}, ray-worker-0) x\n" for number in range(20)))


async def test_restarted_shipper_sends_nothing_twice(root: Path, stopped: Gateway) -> None:
    folder = logs_of(root)
    data = b"".join(b"line %d\n" % number for number in range(60_000))
    async with shipped(stopped, root):
        append(folder / DRIVER, data)
        await stopped.until_log(data.decode())
        await stopped.logs.flush()
    async with shipped(stopped, root):
        stopped.requests.clear()
        await until(lambda: any(request.startswith("POST") for request in stopped.requests))
        # One query for the files, one for the gateway's instance.
        assert sum(request.startswith("PUT") for request in stopped.requests) <= 2
        assert await stopped.logs.text("train") == data.decode()


async def test_heartbeat_stops_while_gateway_is_down(root: Path, gateway: Gateway) -> None:
    """The container's health check reads its age."""

    def beats() -> bool:
        if gateway.heartbeat.exists():
            gateway.heartbeat.unlink()
            return True
        return False

    append(logs_of(root) / DRIVER, b"starts\n")
    await gateway.until_log("starts\n")
    await until(beats)
    await gateway.kill()
    await asyncio.sleep(0.2)
    beats()
    with pytest.raises(TimeoutError):
        await until(beats, 1.5)
    await gateway.start()
    await until(beats)


async def test_store_outage_leaves_lines_on_nodes(root: Path, stopped: Gateway, tmp_path: Path) -> None:
    store, aside = tmp_path / "store", tmp_path / "aside"
    lines = b"".join(b"%07d %s\n" % (number, b"x" * 1000) for number in range(10_000))
    stopped.sizes = {}
    async with shipped(stopped, root):
        folder = logs_of(root)
        append(folder / DRIVER, b"before\n")
        await stopped.until_log("before\n")
        await stopped.logs.flush()
        store.rename(aside)
        store.write_text("a file is not a folder")
        append(folder / DRIVER, lines)
        job = stopped.logs._jobs["train"]
        await until(lambda: job.unwritten > 8 << 20)
        assert not await stopped.logs.settle("train", "ray-worker-0", time.time(), timeout_s=0.5)
        assert job.unwritten < 9 << 20
        store.unlink()
        aside.rename(store)
        await stopped.until_log("before\n" + lines.decode())


def test_flood_of_files_leaves_those_that_changed_last(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert logs_shipper._NEWEST_FILES == 10_000
    monkeypatch.setattr(logs_shipper, "_NEWEST_FILES", 100)
    folder, elsewhere = logs_of(root), logs_of(root, "ray-worker-1")
    for index in range(140):
        path = (folder / "old" if index % 2 else folder) / f"worker-{'ab' * 28}-02000000-{index}.out"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
        if index < 40:
            os.utime(path, (time.time() - 60, time.time() - 60))
    append(elsewhere / DRIVER, b"of another node\n")
    client: Any = None  # nothing is sent
    shipper = LogShipper(root, client)
    assert shipper._list() == {"ray-worker-0", "ray-worker-1"}
    assert len(shipper._files) == 101
    listed = {file.path.rpartition("-")[2] for file in shipper._files.values() if "-02000000-" in file.path}
    assert listed == {f"{index}.out" for index in range(40, 140)}


@pytest.mark.parametrize("sent", ["log_shipper_token", "ray_token"])
async def test_shipper_process_is_small_and_sends_its_own_token(
    sent: str, root: Path, closed_port: int, tmp_path: Path
) -> None:
    """And that of the nodes if it has none of its own."""
    seen: set[tuple[str, str]] = set()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        seen.add((scope["path"], dict(scope["headers"]).get(b"authorization", b"").decode()))
        status = 404 if scope["path"] == "/platform/logs" else 200
        await send({"type": "http.response.start", "status": status, "headers": [(b"x-gateway-instance", b"a")]})
        await send({"type": "http.response.body", "body": b'{"expected": 0, "again": false}'})

    for name in ("ray_token", "log_shipper_token"):
        (tmp_path / name).write_text(f"{name}\n")
    server = uvicorn.Server(
        uvicorn.Config(answer, host="127.0.0.1", port=closed_port, log_level="error", lifespan="off")
    )
    serving = asyncio.create_task(server._serve())
    environment = dict(settings_environment.environment()) | {
        "MLPLATFORM_GATEWAY": f"http://127.0.0.1:{closed_port}",
        "MLPLATFORM_NODE_LOGS": str(root),
        "RAY_AUTH_TOKEN_PATH": str(tmp_path / "ray_token"),
        "MLPLATFORM_SHIPPER_HEARTBEAT": str(tmp_path / "heartbeat"),
    }
    if sent == "log_shipper_token":
        environment["MLPLATFORM_SHIPPER_TOKEN_PATH"] = str(tmp_path / sent)
    append(logs_of(root) / DRIVER, b"line\n")
    command = [sys.executable, "-X", "importtime", "-m", "mlplatform_gateway.logs.shipper"]
    shipper = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    communicating = asyncio.create_task(shipper.communicate())
    try:
        await until(lambda: len(seen) > 1)
        await until(lambda: (tmp_path / "heartbeat").exists())
        memory = Path(f"/proc/{shipper.pid}/status").read_text()
        assert int(memory.split("VmRSS:")[1].split()[0]) < 60 << 10
    finally:
        shipper.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(shipper.wait(), 5) == 0
        server.should_exit = True
        await serving
    assert {token for _, token in seen} == {f"Bearer {sent}"}
    imported = {line.rpartition("|")[2].strip() for line in (await communicating)[1].decode().split("\n")}
    assert "watchfiles" in imported
    assert not imported & {"boto3", "sqlalchemy", "mlflow", "ray", "starlette"}
