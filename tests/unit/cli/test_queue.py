"""`mlplatform queue` and `mlplatform why`: the order of waiting jobs and the reasons."""

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from command_line import Serve, mlplatform

ENTRY = {
    **{"job": "train-1", "person": "alice", "team": "vision", "place": 2, "requests": "2 GPUs and 4 CPUs"},
    **{"since": "2026-11-01T10:00:00+00:00", "latest_start": "2026-11-01T12:00:00+00:00"},
    "reasons": [
        {"rule": "capacity", "text": "The job waits for 2 GPUs."},
        {"rule": "share", "text": "With this job, team vision would hold 3 GPUs of its share of 2 GPUs."},
    ],
}


DETAILS = {"submission_id": "train-2", "status": "RUNNING", "message": "Job is running.", "entrypoint": "true"}
OF_PLATFORM = {**DETAILS, "state": "RUNNING", "max_restarts_on_loss": 3, "max_restarts_on_failure": 0}


def run(*words: str, address: str) -> str:
    return mlplatform(*words, RAY_ADDRESS=address, COLUMNS="200").stdout


def gateway(method: str, path: str) -> tuple[int, str]:
    """A gateway with one job that waits for resources, and one that runs."""
    if path == "/api/jobs/train-2":
        return 200, json.dumps(DETAILS)
    found = [] if path.endswith("job=train-2") else [ENTRY]
    return 200, json.dumps({"at": datetime.now(UTC).isoformat(), "waiting": 3, "entries": found})


def attempted(more: dict[str, str | None]) -> tuple[int, str]:
    """An answer with the running attempt of a job."""
    attempt = {"number": 1, "outcome": None, "reason": None, "node": "n", "created": "2026-11-01T10:00:00+00:00"}
    return 200, json.dumps({**OF_PLATFORM, "attempts": [{**attempt, "ended": None, **more}]})


def with_attempts(status: int, text: str) -> Callable[[str, str], tuple[int, str]]:
    """The gateway, which answers so if it is asked for the attempts of the job that runs."""
    return lambda method, path: (status, text) if path == "/platform/jobs/train-2" else gateway(method, path)


def test_queue_lists_jobs_with_place_and_reasons(serve: Serve) -> None:
    done = mlplatform("queue", RAY_ADDRESS=serve(gateway), COLUMNS="200")
    assert done.stderr == ""
    head, line, *_, last = done.stdout.splitlines()
    assert head.split()[:4] == ["Job", "Place", "Person", "Team"]
    assert line.split()[:4] == ["train-1", "2", "alice", "vision"]
    assert "The job waits for 2 GPUs." in " ".join(done.stdout.split())
    assert last == "2 more wait."


def test_json_has_one_job_per_line(serve: Serve) -> None:
    assert json.loads(run("queue", "--json", address=serve(gateway))) == ENTRY


def test_why_names_place_and_each_rule(serve: Serve) -> None:
    assert run("why", "train-1", address=serve(gateway)).splitlines() == [
        "train-1 (alice, team vision) requests 2 GPUs and 4 CPUs and waits since 2026-11-01 10:00:00.",
        "Place 2 of 3.",
        "- The job waits for 2 GPUs. [capacity]",
        "- With this job, team vision would hold 3 GPUs of its share of 2 GPUs. [share]",
        "It starts by 2026-11-01 12:00:00, if all jobs keep to their limits.",
    ]


def test_why_as_json_has_place_and_reasons(serve: Serve) -> None:
    found = json.loads(run("why", "train-1", "--json", address=serve(gateway)))
    assert (found["job"], found["status"], found["waiting"], found["entry"]) == ("train-1", "PENDING", 3, ENTRY)
    assert found["message"] == " ".join(reason["text"] for reason in ENTRY["reasons"])
    assert found["leaving"] is None


def test_why_as_json_has_attempt_that_leaves(serve: Serve) -> None:
    why = "Team vision takes back 1 GPU."
    answer = attempted({"leave_by": "2026-11-01T12:00:00+00:00", "leave_why": why})
    found = json.loads(run("why", "train-2", "--json", address=serve(with_attempts(*answer))))
    assert (found["status"], found["message"], found["entry"]) == ("RUNNING", why, None)
    assert found["leaving"]["leave_by"] == "2026-11-01T12:00:00+00:00"


def test_why_names_who_takes_back_resources_of_running_job(serve: Serve) -> None:
    why = "Team vision takes back 1 GPU of its share of 2 GPUs for train-1 (alice)."
    answer = attempted({"leave_by": "2026-11-01T12:00:00+00:00", "leave_why": why})
    assert run("why", "train-2", address=serve(with_attempts(*answer))).splitlines() == [
        "train-2 is RUNNING, and was asked to leave: it has until 2026-11-01 12:00:00 to save its state.",
        f"- {why}",
    ]


@pytest.mark.parametrize(
    "answer",
    [attempted({}), attempted({"leave_by": None, "leave_why": None}), (404, "Job train-2 does not exist")],
    ids=["of an earlier gateway", "with an attempt that stays", "without attempts"],
)
def test_why_names_state_of_running_job(serve: Serve, answer: tuple[int, str]) -> None:
    assert run("why", "train-2", address=serve(with_attempts(*answer))) == "train-2 is RUNNING: Job is running.\n"


def test_old_answer_says_since_when_ray_is_silent(serve: Serve) -> None:
    def old(method: str, path: str) -> tuple[int, str]:
        return 200, json.dumps({"at": "2026-11-01T11:00:00+00:00", "waiting": 1, "entries": [ENTRY]})

    address = serve(old)
    for words in (("queue",), ("why", "train-1")):
        assert run(*words, address=address).startswith("As of 2026-11-01 11:00:00: Ray has not answered since")
