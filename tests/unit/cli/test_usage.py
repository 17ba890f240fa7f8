"""`mlplatform usage`: the groups and the time that are asked for, as a table, as CSV and as JSON."""

import csv
import io
import json
import subprocess
import time
from urllib.parse import parse_qs, urlsplit

import pytest
from command_line import Serve, mlplatform, refusal

SUMS = {"lost_gpu_seconds": 0.0, "lost_cpu_seconds": 1.5, "borrowed_gpu_seconds": 0.0}


def usage(*words: str, address: str) -> subprocess.CompletedProcess[str]:
    return mlplatform("usage", *words, RAY_ADDRESS=address)


def person(name: str, gpu_seconds: float) -> dict[str, object]:
    """The group of a person, whose GPUs are measured if it is bob."""
    used = {"used_gpu_seconds": 1800.0 if name == "bob" else None}
    return {"person": name, "jobs": 3, "running": 1, "gpu_seconds": gpu_seconds, "cpu_seconds": 7200.0, **SUMS, **used}


class Ledger:
    """A gateway with people or, in parts of two, jobs; it keeps the queries."""

    def __init__(self, jobs: int = 0) -> None:
        self.jobs = jobs
        self.queries: list[dict[str, str]] = []

    def __call__(self, method: str, path: str) -> tuple[int, str]:
        query = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
        self.queries.append(query)
        answer = {"since": 0, "until": 1_800_000_000, "next": None}
        if query["by"] != "job":
            return 200, json.dumps({**answer, "entries": [person("ada", 1800.0), person("bob", 3600.0)]})
        first = int(query.get("after", "0")) + 1
        numbers = range(first, min(first + 2, self.jobs + 1))
        named = [{"job": f"job-{number}", "sequence": number, "team": None} for number in numbers]
        more = {"next": numbers[-1]} if numbers and numbers[-1] < self.jobs else {}
        return 200, json.dumps({**answer, "entries": [{**person("ada", 1.0), **names} for names in named], **more})


def test_table_has_hours_with_the_largest_first(serve: Serve) -> None:
    done = usage(address=serve(Ledger()))
    assert done.stderr == ""
    head, *lines = [line.split() for line in done.stdout.splitlines()]
    assert head[:3] == ["Person", "Jobs", "Running"]
    assert lines == [
        ["bob", "3", "1", "1.00", "2.00", "0.00", "0.00", "0.50"],
        ["ada", "3", "1", "0.50", "2.00", "0.00", "0.00", "-"],
    ]


def test_json_has_one_group_per_line(serve: Serve) -> None:
    done = usage("--json", address=serve(Ledger()))
    assert [json.loads(line) for line in done.stdout.splitlines()] == [person("ada", 1800.0), person("bob", 3600.0)]


def test_csv_has_the_same_values(serve: Serve) -> None:
    done = usage("--csv", address=serve(Ledger()))
    found = list(csv.DictReader(io.StringIO(done.stdout)))
    assert found == [
        {key: "" if value is None else str(value) for key, value in person(*of).items()}
        for of in (("ada", 1800.0), ("bob", 3600.0))
    ]


def test_all_parts_of_a_long_list_have_the_same_end(serve: Serve) -> None:
    ledger = Ledger(jobs=5)
    done = usage("--by", "job", "--csv", address=serve(ledger))
    assert [row["job"] for row in csv.DictReader(io.StringIO(done.stdout))] == [
        f"job-{number}" for number in range(1, 6)
    ]
    assert [query.get("until") for query in ledger.queries] == [None, "1800000000", "1800000000"]


def test_empty_report_is_named_and_has_columns(serve: Serve) -> None:
    address = serve(Ledger())
    assert usage("--by", "job", address=address).stdout == "Nothing was reserved in this time.\n"
    assert usage("--by", "job", "--csv", address=address).stdout.startswith("job,sequence,person,team,jobs,")


@pytest.mark.parametrize(
    ("words", "since", "until"),
    [
        ((), -30 * 86400, None),
        (("--since", "12h"), -12 * 3600, None),
        (("--since", "2026-11-01"), 1793491200, None),
        (("--since", "2026-11-01T12:00+02:00", "--until", "2026-11-02"), 1793527200, 1793577600),
        (("--since", "7d", "--until", "1d"), -7 * 86400, -86400),
    ],
    ids=["default", "span", "date", "times", "spans"],
)
def test_window_is_a_span_or_a_date(words: tuple[str, ...], since: int, until: int | None, serve: Serve) -> None:
    ledger, begun = Ledger(), time.time()
    assert usage("--json", *words, address=serve(ledger)).returncode == 0
    (query,) = ledger.queries

    def asked(name: str, expected: int | None) -> bool:
        if expected is None:
            return name not in query
        earliest, seconds = (int(begun) + expected, 60) if expected <= 0 else (expected, 1)
        return earliest <= int(query[name]) < earliest + seconds

    assert asked("since", since)
    assert asked("until", until)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--since", "yesterday"), "Invalid time 'yesterday': use a time span such as 30d"),
        (("--until=-7d",), "Invalid time '-7d': "),
        (("--since", "1d", "--until", "7d"), "--since 1d is not before --until 7d"),
        (("--csv", "--json"), "Choose one of --csv and --json."),
    ],
)
def test_invalid_window_or_form_is_named(words: tuple[str, ...], problem: str, closed_port: int) -> None:
    error, code = refusal("usage", *words, RAY_ADDRESS=f"http://127.0.0.1:{closed_port}")
    assert code == 2
    assert error.startswith(problem)
