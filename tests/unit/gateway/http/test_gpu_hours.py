"""Budgets of GPU hours over HTTP: of tokens, which then submit no more jobs, and of teams in lists."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from peopled import as_person, invite, log_in, submit
from started_gateway import StartedGateway

from mlplatform_gateway.jobs.states import Outcome


@pytest.fixture
def program(client: httpx.Client, people: dict[str, httpx.Client]) -> Iterator[httpx.Client]:
    """A client with a token of alice for three GPU hours; its job `first` holds two GPUs."""
    with as_person(client, log_in(client, invite(client, "alice", gpu_hours=3))) as opened:
        assert submit(opened, "first").status_code == 200
        yield opened


def test_running_job_uses_the_hours_of_its_token(
    started: StartedGateway, people: dict[str, httpx.Client], program: httpx.Client
) -> None:
    attempt = started.attempt("alice", "first")
    started.age("first", hours=1)
    assert submit(program, "second").status_code == 200
    started.age("first", minutes=30)
    token_id = program.headers["authorization"].split("_")[1]
    refused = submit(program, "third")
    assert (refused.status_code, refused.text) == (
        403,
        f"The jobs of token {token_id} have used 3.0 of its 3 GPU hours, so it submits no more; ask an administrator "
        "for another code (`mlplatform people add alice --gpu-hours N`).",
    )
    with as_person(program, attempt) as inner:
        assert submit(inner, "child").text == refused.text
    assert submit(people["alice"], "by-hand").status_code == 200


def test_child_counts_for_the_token_of_its_parent(started: StartedGateway, program: httpx.Client) -> None:
    with as_person(program, started.attempt("alice", "first")) as inner:
        assert submit(inner, "child").status_code == 200
    started.attempt("alice", "child")
    started.age("child", hours=2)
    assert submit(program, "second").status_code == 403


def test_resumed_job_counts_for_the_token_that_resumes_it(
    started: StartedGateway, people: dict[str, httpx.Client], program: httpx.Client
) -> None:
    started.attempt("alice", "first")
    started.age("first", hours=2)
    started.end(Outcome.FAILED, "first")
    submit(people["alice"], "by-hand")
    started.attempt("alice", "by-hand")
    started.end(Outcome.FAILED, "by-hand")
    assert program.post("/platform/jobs/by-hand/resume").status_code == 403
    assert people["alice"].post("/platform/jobs/first/resume").status_code == 200
    token_id = people["alice"].headers["authorization"].split("_")[1]
    assert asyncio.run(started.store.get("first")).token == token_id


def test_lost_attempts_and_other_tokens_use_nothing(
    started: StartedGateway, people: dict[str, httpx.Client], program: httpx.Client
) -> None:
    started.attempt("alice", "first")
    started.age("first", hours=9)
    started.end(Outcome.LOST, "first")
    submit(people["alice"], "by-hand")
    started.attempt("alice", "by-hand")
    started.age("by-hand", hours=9)
    assert submit(program, "second").status_code == 200


def test_tokens_are_listed_with_their_hours(people: dict[str, httpx.Client], program: httpx.Client) -> None:
    tokens = people["alice"].get("/platform/tokens").json()["tokens"]
    assert [token["gpu_hours"] for token in tokens] == [None, 3]


def test_budget_of_team_is_listed_with_its_use(
    started: StartedGateway, client: httpx.Client, people: dict[str, httpx.Client]
) -> None:
    submit(people["alice"], "hers")
    started.attempt("alice", "hers")
    assert client.patch("/platform/teams/vision", json={"budget": "500/day"}).status_code == 200
    audio, vision = people["otto"].get("/platform/teams").json()["teams"]
    assert (audio["budget"], audio["used_gpu_hours"]) == ("", None)
    assert vision["budget"] == "500/day"
    assert 0 <= vision["used_gpu_hours"] < 1
    budgets = people["otto"].get("/platform/usage").json()["budgets"]
    assert budgets == ["Team vision has used 0.0 of its 500 GPU hours of this day."]
    assert client.patch("/platform/teams/vision", json={"budget": ""}).status_code == 200
    assert people["otto"].get("/platform/usage").json()["budgets"] == []


@pytest.mark.parametrize("budget", ["500", "500/year", "-1/day", "1.5/day", "many/month"])
def test_invalid_budget_is_named(client: httpx.Client, people: dict[str, httpx.Client], budget: str) -> None:
    refused = client.patch("/platform/teams/vision", json={"budget": budget})
    assert (refused.status_code, refused.text) == (
        400,
        f"budget={budget!r} is not valid: use GPU hours per month, week or day, as in 500/month; correct it and "
        "submit again.",
    )
