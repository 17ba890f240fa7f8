"""Lines without their end in a job's log: bars, prompts and fragments, in the log so far and as it is followed."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from log_files import DRIVER, EARLY_WORKER, NODE, SESSION, WORKER, running, stored

from mlplatform.client.follow import last_state
from mlplatform_gateway.logs.lines import PART_BYTES
from mlplatform_gateway.logs.store import JobLogs

pytestmark = pytest.mark.timeout(60)

UP = "\x1b[A"
NUMBERS = "".join(f"{number}\n" for number in range(60))


class Written:
    """A file of a node that grows; what is not accepted is sent again, as the shipper does."""

    def __init__(self, logs: JobLogs, file: str = DRIVER) -> None:
        self._logs, self._file = logs, file
        self.content, self.accepted = b"", 0

    async def write(self, *pieces: str | bytes) -> None:
        for piece in pieces:
            self.content += piece.encode() if isinstance(piece, str) else piece
            rest = self.content[self.accepted :]
            self.accepted = (await self._logs.accept(NODE, SESSION, self._file, self.accepted, 7, rest)).expected


async def until(reader: AsyncIterator[str], end: str) -> str:
    """Read until the text ends as given."""
    text = ""
    while not text.endswith(end):
        text += await anext(reader)
    return text


@pytest.mark.parametrize(
    ("pieces", "shown", "kept"),
    [
        (["one\nName? "], "one\nName? ", "one\nName? \n"),
        (["loading", " ...", " 3 of 9"], "loading ... 3 of 9", "loading ... 3 of 9\n"),
        (["\r 10%", "\r 50%", "\r100%"], "100%", "100%\n"),
        ([" 10%\r", " 50%\r"], " 50%", " 50%\n"),
        (["\r\x1b[2K\x1b[3", "1m 50%\x1b[0m ━━\x1b["], " 50% ━━", " 50% ━━\n"),
        (["one\r\n", "two\r"], "one\ntwo", "one\ntwo\n"),
        ([b"gr\xc3", b"\xb6\xc3\x9fe \xf0\x9f\x94"], "größe ", "größe \ufffd\n"),
        (["\r 50%", "\r      \r"], "", ""),
        (["x" * (PART_BYTES - 1)], "x" * (PART_BYTES - 1), "x" * (PART_BYTES - 1) + "\n"),
        ([f"\r{step:6}%" for step in range(2000)], "  1999%", "  1999%\n"),
        (["\repoch 0", *(f"\n\rstep {n}{UP}" for n in range(99))], "step 98", "step 98\n"),
        (
            ["\repoch 0", f"\n\rstep 9{UP}\repoch 1", "\n", "next\n", "last"],
            "epoch 1\nnext\nlast",
            "epoch 1\nnext\nlast\n",
        ),
        (
            [f"a{n}\nb{n}\nc{n}\r{UP}{UP}" for n in range(99)] + ["A\nB\nC\nnext\n"],
            "A\nB\nC\nnext\n",
            "A\nB\nC\nnext\n",
        ),
        ([f"a\n{UP * 999}", *(f"{n}\n" for n in range(60))], NUMBERS, NUMBERS),
    ],
)
async def test_log_ends_with_last_state_of_line(
    pieces: list[str], shown: str, kept: str, logs: JobLogs, tmp_path: Path
) -> None:
    await Written(logs).write(*pieces)
    assert await logs.text("train") == shown
    await logs.close("train")
    assert await logs.text("train") == kept == stored(tmp_path)


async def test_overwritten_states_are_sent_and_written_once(tmp_path: Path) -> None:
    async with running(tmp_path) as logs:
        bar = Written(logs)
        await bar.write("one\n")
        await logs.flush()
        before = stored(tmp_path)
        await bar.write(*(f"\r{step:9}%" for step in range(2000)))
        assert len(bar.content) - bar.accepted < PART_BYTES / 10
        assert not logs._jobs["train"].pending
        assert stored(tmp_path) == before == "one\n"
    # After a crash, the shipper sends again what no stored line follows.
    async with running(tmp_path) as logs:
        again = Written(logs)
        again.accepted = (await logs.accept(NODE, SESSION, DRIVER, 0, 7, b"")).expected
        await again.write(bar.content + b"\n")
        assert await logs.text("train") == "one\n     1999%\n"


async def test_growing_line_is_followed_as_it_grows(logs: JobLogs) -> None:
    follower, driver = logs.follow("train", stored=True, unfinished=True), Written(logs)
    await driver.write("one\nload")
    assert await until(follower, "load") == "one\nload"
    started = time.monotonic()
    await driver.write("ing", " ...")
    assert await until(follower, "...") == "ing ..."
    assert time.monotonic() - started < 2
    await driver.write(" done\ntwo\n")
    assert await until(follower, "two\n") == " done\ntwo\n"


async def test_redrawn_line_is_followed_once_per_second(logs: JobLogs) -> None:
    follower, bar = logs.follow("train", stored=True, unfinished=True), Written(logs)
    await bar.write("\r 10%")
    assert await anext(follower) == " 10%"
    following = asyncio.ensure_future(anext(follower))
    for step in range(11, 100):
        await bar.write(f"\r {step}%")
        await asyncio.sleep(0)
    assert await following == "\r    \r 99%"
    await bar.write("\r100%", "\n")
    assert await until(follower, "\n") == "\r    \r100%\n"
    await bar.write("\r next: 1%")
    assert await until(follower, "1%") == " next: 1%"
    await bar.write("\r         \r")
    assert await until(follower, "\r") == "\r         \r"


async def test_unfinished_lines_of_several_processes_are_all_followed(logs: JobLogs) -> None:
    driver, rank, other = Written(logs), Written(logs, WORKER), Written(logs, EARLY_WORKER)
    follower = logs.follow("train", stored=True, unfinished=True)
    await driver.write("begin\n", "Continue? ")
    assert await until(follower, "? ") == "begin\nContinue? "
    await rank.write("\r 10%")
    await other.write(":job_id:01000000\n:actor_name:T\n\r 20%")
    seen = await until(follower, "20%")
    assert seen.split("\r")[-3:] == [
        "(pid=4711, ray-worker-0)  10%",
        " " * len("(pid=4711, ray-worker-0)  10%"),
        "(T pid=4712, ray-worker-0)  20%",
    ]
    assert (await logs.text("train")).split("\n")[1:] == [
        "Continue? ",
        "(pid=4711, ray-worker-0)  10%",
        "(T pid=4712, ray-worker-0)  20%",
    ]
    # What another process prints hides the line for a second only.
    await rank.write("\r 11%\n")
    seen = await until(follower, "11%\n")
    assert last_state(seen.rstrip("\n")) == "(pid=4711, ray-worker-0)  11%"
    assert await until(follower, "20%") == "(T pid=4712, ray-worker-0)  20%"
    await logs.close("train")
    seen += "".join([part async for part in follower])
    assert [last_state(line) for line in seen.splitlines()][-2:] == ["Continue? ", "(T pid=4712, ray-worker-0)  20%"]
