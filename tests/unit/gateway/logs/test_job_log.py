"""The storage format of a job's log, which has to stay readable, and the last lines of a log."""

import json

import pytest

from mlplatform_gateway.logs.api import last_lines
from mlplatform_gateway.logs.job_log import JobLog

SESSION = "session_2026-11-21_08-52-55_745928_1"
FILES = {
    f"ray-worker-0/{SESSION}/job-driver-train--1-0a1b2c.log": {"offsets": [[7, 230]]},
    f"ray-worker-0/{SESSION}/worker-{'ab' * 28}-01000000-4711.out": {"offsets": [[9, 17]], "actor": "A"},
}
CHUNK = {"chunks": [[4, 32, 4], [5, 32, 4], [6, 32, 4]], "left_out": [134, 18], "sources": FILES}
"""As version 0.4.0 writes it."""


def test_log_of_0_4_0_continues_in_same_format() -> None:
    text = "(A pid=4711, ray-worker-0) hi\n"
    content = f"{json.dumps(CHUNK)}\n{text}"
    job = JobLog("train", 120, 300)
    job.restore(7, content)
    assert (job.text(), job.number, job.size, job.lines) == (text, 7, 30, 1)
    assert (job.omitted, job.omitted_lines, job.chunk_after(0), job.has_chunk(5)) == (134, 18, 4, True)
    assert job.sessions == {SESSION}
    assert job.content() == content

    name = f"worker-{'ab' * 28}-01000000-4711.out"
    assert job.accept(job.file("ray-worker-0", SESSION, name), 9, 17, b"again\n", more=False) == 23
    assert job.text() == f"{text}(A pid=4711, ray-worker-0) again\n"


@pytest.mark.parametrize("text", ["", "one", "one\n", "one\ntwo", "one\ntwo\n", "\n\none\n\n", "a\rb\nc\n"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
def test_last_lines_are_those_of_the_whole_text(text: str, count: int) -> None:
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    whole = [line for line in lines if line]
    assert last_lines(text, count) == ("".join(whole[-count:]) if count else "")
