"""`mlplatform audit`: the part of the log that is asked for, as a table and as JSON."""

import json
import subprocess
import time
from urllib.parse import parse_qs, urlsplit

import pytest
from command_line import Serve, mlplatform, refusal


def audit(*words: str, address: str) -> subprocess.CompletedProcess[str]:
    return mlplatform("audit", *words, RAY_ADDRESS=address)


def entry(sequence: int) -> dict[str, object]:
    who = {"principal": "shared token", "kind": "session", "address": "10.0.0.7"}
    change = {"before": {"state": "RUNNING", "user": "ada"}, "after": {"state": "STOPPED", "user": "ada"}}
    what = {"verb": "stop", "object": f"job train-{sequence:04}", **change}
    return {"sequence": sequence, "time": "2026-11-25T10:00:00.123456+00:00", **who, **what}


class Log:
    """A gateway with `count` entries, which serves at most 1,000 each time; it keeps the queries."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.queries: list[dict[str, list[str]]] = []

    def __call__(self, method: str, path: str) -> tuple[int, str]:
        query = parse_qs(urlsplit(path).query)
        self.queries.append(query)
        limit, end = int(query["limit"][0]), int(query.get("before", [str(self.count)])[0])
        assert limit <= 1000
        return 200, json.dumps({"entries": [entry(number) for number in range(max(0, end - limit), end)]})


def test_latest_entries_are_shown_newest_last(serve: Serve) -> None:
    done = audit("--limit", "2", address=serve(Log(5)))
    ends = [f"{name} state RUNNING -> STOPPED".split() for name in ("train-0003", "train-0004")]
    assert [line.split()[-5:] for line in done.stdout.splitlines()[1:]] == ends
    assert "2026-11-25 10:00:00  shared token  session  10.0.0.7  stop job train-0003" in done.stdout
    assert done.stderr == "The latest 2 entries; --limit shows more.\n"


def test_json_has_one_entry_per_line(serve: Serve) -> None:
    done = audit("--json", address=serve(Log(2)))
    assert [json.loads(line) for line in done.stdout.splitlines()] == [entry(0), entry(1)]
    assert done.stderr == ""


def test_more_entries_than_one_answer_has_are_read_in_turn(serve: Serve) -> None:
    log = Log(3000)
    done = audit("--json", "--limit", "2500", address=serve(log))
    assert [json.loads(line)["sequence"] for line in done.stdout.splitlines()] == list(range(500, 3000))
    assert len(log.queries) == 3


@pytest.mark.parametrize(
    ("since", "seconds"), [("90s", 90), ("5m", 300), ("12h", 43200), ("7d", 604800), ("2w", 1209600)]
)
def test_since_is_a_time_span(since: str, seconds: int, serve: Serve) -> None:
    log = Log(1)
    begun = int(time.time())
    assert audit("--since", since, address=serve(log)).returncode == 0
    assert 0 <= int(log.queries[0]["since"][0]) - (begun - seconds) < 60


@pytest.mark.parametrize("since", ["yesterday", "7", "-7d", "7 d", "9" * 30 + "w"])
def test_invalid_since_is_named(since: str, closed_port: int) -> None:
    error, code = refusal("audit", f"--since={since}", RAY_ADDRESS=f"http://127.0.0.1:{closed_port}")
    assert code == 2
    assert error.startswith(f"Invalid --since {since!r}: ")


def test_empty_log_is_reported(serve: Serve) -> None:
    done = audit("--since", "7d", address=serve(Log(0)))
    assert (done.returncode, done.stdout) == (0, "No entry.\n")
