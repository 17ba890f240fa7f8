"""Attempts of jobs at the gateway: they submit, read and stop for their owner, and report runs."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from peopled import as_person, submit
from started_gateway import StartedGateway

from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings
from mlplatform_gateway.jobs.housekeeping import JobRuns
from mlplatform_gateway.jobs.states import Outcome

RUN, OTHER = "a" * 32, "b" * 32


@dataclass
class Platform:
    """A gateway with people, and jobs of theirs that run."""

    started: StartedGateway
    shared: httpx.Client
    people: dict[str, httpx.Client]

    def attempt(self, name: str, job_id: str, number: int = 1, **fields: object) -> httpx.Client:
        """Let an attempt of a person's job run, or of one of the shared token; return a client with its token."""
        owner = self.people.get(name, self.shared)
        if number == 1:
            assert submit(owner, job_id, **fields).status_code == 200
        return as_person(self.shared, self.started.attempt(name, job_id))

    def runs(self, job_id: str) -> list[tuple[str, int, bool]]:
        """Recorded runs of a job, with their attempts."""
        found = asyncio.run(JobRuns(self.started.store.engine).of(job_id))
        return [(run.run_id, run.attempt, run.own) for run in found]


@pytest.fixture
def platform(started: StartedGateway, client: httpx.Client, people: dict[str, httpx.Client]) -> Platform:
    return Platform(started, client, people)


@pytest.fixture
def hers(platform: Platform) -> Iterator[httpx.Client]:
    """A client with the token of an attempt of alice's job `hers`."""
    with platform.attempt("alice", "hers") as client:
        yield client


def row(platform: Platform, job_id: str) -> tuple[str | None, str | None, str]:
    job = asyncio.run(platform.started.store.get(job_id))
    return job.person, job.team, job.user


def test_child_belongs_to_owner_and_team_of_the_job(platform: Platform, hers: httpx.Client) -> None:
    assert submit(hers, "child").status_code == 200
    assert row(platform, "child") == ("alice", "vision", "alice")
    entry = platform.shared.get("/platform/audit").json()["entries"][-1]
    assert (entry["principal"], entry["kind"], entry["object"]) == ("alice", "job hers", "job child")
    assert hers.get("/api/jobs/child").json()["entrypoint"] == "python train.py --secret"
    assert hers.get("/api/jobs/child/logs").status_code == 200
    assert hers.post("/api/jobs/child/stop").json() == {"stopped": True}


def test_child_of_shared_tokens_job_belongs_to_it(platform: Platform) -> None:
    with platform.attempt("", "ours") as ours:
        assert submit(ours, "child").status_code == 200
        assert row(platform, "child") == (None, None, "mallory")
        assert ours.post("/api/jobs/child/stop").json() == {"stopped": True}
        submit(platform.people["alice"], "hers")
        assert ours.post("/api/jobs/hers/stop").status_code == 403


def test_attempt_controls_no_job_of_somebody_else(platform: Platform, hers: httpx.Client) -> None:
    submit(platform.people["bob"], "his")
    refused = hers.post("/api/jobs/his/stop")
    assert (refused.status_code, refused.text) == (
        403,
        "Job his belongs to bob of team vision, so job hers cannot stop it; only bob, the leads of team vision and "
        "administrators can.",
    )
    assert hers.get("/api/jobs/his/logs").status_code == 403
    assert hers.get("/api/jobs/his").json()["entrypoint"] != "python train.py --secret"
    assert platform.people["bob"].get("/api/jobs/his").json()["status"] == "PENDING"


def test_attempt_of_lead_or_administrator_has_no_more_rights(platform: Platform) -> None:
    submit(platform.people["alice"], "hers")
    for name in ("lena", "ada"):
        with platform.attempt(name, f"of-{name}") as attempt:
            assert attempt.post("/api/jobs/hers/stop").status_code == 403
            assert attempt.get("/platform/audit").status_code == 403
            assert submit(attempt, f"child-of-{name}").status_code == 200


def test_attempt_submits_only_for_the_team_of_its_job(platform: Platform, hers: httpx.Client) -> None:
    platform.shared.post("/platform/people", json={"name": "alice", "team": "audio"})
    other = submit(hers, "child", metadata={"team": "audio"})
    sentence = "Job hers is of team vision, and so is every job that it submits; remove team 'audio'."
    assert (other.status_code, other.text) == (403, sentence)
    platform.shared.delete("/platform/people/alice", params={"team": "vision"})
    assert submit(hers, "child").text.startswith("You may not submit jobs for team 'vision'")


def test_reported_runs_are_recorded_for_the_job(platform: Platform, hers: httpx.Client) -> None:
    assert hers.put(f"/platform/attempt/runs/{OTHER}").json() == {"recorded": OTHER}
    for own in ("0", "1", "0"):
        assert hers.put(f"/platform/attempt/runs/{RUN}", params={"own": own}).status_code == 200
    assert platform.runs("hers") == [(RUN, 1, True), (OTHER, 1, False)]
    platform.started.end(Outcome.LOST, "hers")
    with platform.attempt("alice", "hers", number=2) as again:
        assert again.put(f"/platform/attempt/runs/{OTHER}").status_code == 200
    assert platform.runs("hers") == [(RUN, 1, True), (OTHER, 2, False)]
    platform.started.end(Outcome.SUCCEEDED, "hers", 2)
    assert platform.people["alice"].delete("/api/jobs/hers").status_code == 200
    assert platform.runs("hers") == []


def test_run_belongs_to_the_job_that_has_reported_it_first(platform: Platform, hers: httpx.Client) -> None:
    assert hers.put(f"/platform/attempt/runs/{RUN}").status_code == 200
    with platform.attempt("bob", "his") as his:
        refused = his.put(f"/platform/attempt/runs/{RUN}", params={"own": "1"})
    sentence = f"Run {RUN} belongs to another job, so job his cannot report it."
    assert (refused.status_code, refused.text) == (403, sentence)
    assert platform.runs("hers") == [(RUN, 1, False)]


@pytest.mark.parametrize("run_id", ["a.b", "x" * 65, "%27"])
def test_invalid_id_of_run_is_rejected(hers: httpx.Client, run_id: str) -> None:
    assert hers.put(f"/platform/attempt/runs/{run_id}").status_code == 400


def test_client_in_a_job_sends_its_token_to_the_gateway(platform: Platform, hers: httpx.Client) -> None:
    gateway = str(hers.base_url)
    token = hers.headers["authorization"].removeprefix("Bearer ")
    with Jobs(Settings.load(ray_address=gateway, gateway=gateway, attempt_token=token)) as jobs:
        assert jobs.get("hers").entrypoint == "python train.py --secret"
    elsewhere = Settings.load(ray_address="http://other:8265", gateway=gateway, attempt_token=token)
    assert elsewhere.own_token is None
