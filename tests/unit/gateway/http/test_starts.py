"""Starts of processes at the gateway: each line of a node's log is counted once, for the attempt that it names."""

from __future__ import annotations

import httpx
from started_gateway import LOG, StartedGateway, line, put, start, starts

from mlplatform.gateway.http.starts import BODY_BYTES
from mlplatform.gateway.jobs import starts as jobs_starts

REASON = "HF_HOME differs from the template's"


def test_starts_are_counted_per_attempt_role_and_reason(started: StartedGateway) -> None:
    started.add("other", attempts=2)
    body = b"".join(
        [
            *(line(role="driver"), line(), line(), line(REASON), line("another reason")),
            *(line(job="other", attempt="2"), line(job="other", attempt=2, role="driver", cold=REASON)),
        ]
    )
    with started.running() as client:
        assert put(client, 0, body) == (200, len(body))
        assert put(client, 0, line(REASON), node="ray-worker-1") == (200, len(line(REASON)))
        assert starts(client) == [
            [start(1, role="driver"), start(2), start(2, REASON), start(1, "another reason")],
        ]
        assert starts(client, "other") == [[], [start(1, REASON, "driver"), start(1)]]


def test_repeated_request_counts_nothing(started: StartedGateway) -> None:
    with started.running() as client:
        assert put(client, 0, line()) == (200, len(line()))
        assert put(client, 0, line()) == (200, len(line()))
        assert put(client, 0, line() * 2) == (200, len(line()))
        assert put(client, 9999, line()) == (409, len(line()))
        assert put(client, 0, b"") == (200, len(line()))
        assert starts(client) == [[start(1)]]


def test_restarted_gateway_continues_at_stored_offset(started: StartedGateway) -> None:
    with started.running() as client:
        put(client, 0, line())
    with started.running() as client:
        assert put(client, 0, b"") == (200, len(line()))
        assert put(client, 0, line()) == (200, len(line()))
        assert put(client, len(line()), line()) == (200, 2 * len(line()))
        assert starts(client) == [[start(2)]]


def test_incomplete_line_is_counted_once_complete(started: StartedGateway) -> None:
    with started.running() as client:
        assert put(client, 0, line() + line()[:20]) == (200, len(line()))
        assert put(client, len(line()), line()[:20]) == (200, len(line()))
        assert put(client, len(line()), line()) == (200, 2 * len(line()))
        assert starts(client) == [[start(2)]]


def test_endless_line_does_not_block_log(started: StartedGateway) -> None:
    with started.running() as client:
        assert put(client, 0, b"x" * 5000) == (200, 5000)
        rest = b"x\n" + line()
        assert put(client, 5000, rest) == (200, 5000 + len(rest))
        assert starts(client) == [[start(1)]]


def test_invalid_lines_are_skipped(started: StartedGateway) -> None:
    invalid = [
        *(b"\n", b"{\n", b"[]\n", b"{}\n", b"\xff\xfe\n", b"[" * 3000 + b"\n"),
        line().replace(b"mine", b"\\ud800"),
        *(line(job=None), line(job="a\0b"), line(job="x" * 129), line(role="boss")),
        *(line(attempt=None), line(attempt="0"), line(attempt=10**30), line(attempt=[1])),
        line().replace(b"null", b"7"),
    ]
    offset = 0
    with started.running() as client:
        for number, one in enumerate(invalid, 1):
            body = one + line()
            assert put(client, offset, body) == (200, offset + len(body))
            offset += len(body)
            assert starts(client) == [[start(number)]], one


def test_starts_of_unknown_attempts_are_skipped(started: StartedGateway) -> None:
    body = line(job="unknown") + line(attempt="2") + line()
    with started.running() as client:
        assert put(client, 0, body) == (200, len(body))
        assert starts(client) == [[start(1)]]


def test_reasons_are_shortened_and_printable(started: StartedGateway) -> None:
    with started.running() as client:
        put(client, 0, line("\x1b[2J\0 erased\n" + "long " * 100) + line(""))
        ((long, empty),) = starts(client)
    assert long["reason"].startswith("?[2J? erased?long")
    assert len(long["reason"]) == 300
    assert empty == start(1, jobs_starts.OTHER)


def test_further_reasons_are_folded_into_one(started: StartedGateway) -> None:
    limit = jobs_starts.MAX_REASONS
    body = b"".join(line(f"reason {number:03}") for number in range(limit + 5))
    known = line("reason 000") + line() + line("one more")
    with started.running() as client:
        put(client, 0, body)
        put(client, len(body), known)
        ((warm, *cold),) = starts(client)
    assert warm == start(1)
    counts = {found["reason"]: found["count"] for found in cold}
    assert len(counts) == limit + 1
    assert counts[jobs_starts.OTHER] == 6
    assert counts["reason 000"] == 2


def test_invalid_request_is_rejected_with_reason(started: StartedGateway) -> None:
    invalid = [
        ("ray-worker-0/starts.jsonl", "0", "Invalid file 'starts.jsonl'"),
        ("a%20node/" + LOG, "0", "Invalid node 'a node'"),
        ("ray-worker-0/" + LOG, "-1", "Invalid offset '-1'"),
        ("ray-worker-0/" + LOG, "1" + "0" * 19, "Invalid offset"),
    ]
    with started.running() as client:
        for path, offset, says in invalid:
            answer = client.put(f"/platform/starts/{path}", params={"offset": offset}, content=line())
            assert answer.status_code == 400
            assert says in answer.text
        assert starts(client) == [[]]


def test_too_large_request_is_rejected(started: StartedGateway) -> None:
    with started.running() as client:
        answer = client.put(f"/platform/starts/n/{LOG}", params={"offset": 0}, content=b"x" * (BODY_BYTES + 1))
        assert answer.status_code == 413
        assert put(client, 0, b"", node="n") == (200, 0)


def test_request_without_token_is_rejected(started: StartedGateway) -> None:
    with started.running() as client:
        answer = httpx.put(f"{client.base_url}/platform/starts/n/{LOG}?offset=0", content=line())
        assert answer.status_code == 401
        assert starts(client) == [[]]


def test_deleted_job_takes_its_starts_with_it(started: StartedGateway) -> None:
    started.add("other")
    both = line() + line(job="other")
    with started.running() as client:
        put(client, 0, both)
        started.end()
        assert client.delete("/api/jobs/mine").status_code == 200
        assert put(client, len(both), both) == (200, 2 * len(both))
        assert starts(client, "other") == [[start(2)]]
        started.add()
        assert starts(client) == [[]]


def test_positions_of_old_logs_are_deleted(started: StartedGateway) -> None:
    logs = [f"starts-{number:016x}.jsonl" for number in range(jobs_starts.KEPT_LOGS + 1)]
    with started.running() as client:
        put(client, 0, line(), node="other")
        for log in logs:
            put(client, 0, line(), file=log)
        expected = [put(client, 0, b"", file=log)[1] for log in reversed(logs)]
        assert put(client, 0, b"", node="other") == (200, len(line()))
    assert expected == [*[len(line())] * jobs_starts.KEPT_LOGS, 0]
