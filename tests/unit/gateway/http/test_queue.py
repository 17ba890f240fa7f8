"""The queue over HTTP: every waiting job with its place and the reasons, for everybody."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from ray_head import BOUND_S, NO_TLS, served
from without_log_in import without_log_in

from mlplatform.api.base import MOST_ENTRIES
from mlplatform.capacity.resources import Node, Request, Resources
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.queue import api as queue
from mlplatform_gateway.queue.api import Explanations
from mlplatform_gateway.queue.planner.queue import JobClass, RunningJob, Team, View, WaitingJob

NODE = Node("a", True, {"CPU": 4.0, "GPU": 2.0}, {"CPU": 4.0, "GPU": 0.0})


def waiting(number: int, gpus: float = 1) -> WaitingJob:
    request = Request(Resources(cpus=1, gpus=gpus))
    return WaitingJob(f"job-{number}", number, "vision", "alice", JobClass.NORMAL, request, since=1000.0 + number)


def answer(view: View | None, **params: str) -> dict[str, Any]:
    async def later(job_id: str | None) -> Sequence[JobRow]:
        return []

    with served(without_log_in(queue.routes(Explanations(lambda: view), later))) as address:
        found = httpx.get(f"{address}/platform/queue", params=params, verify=NO_TLS, timeout=BOUND_S)
    assert found.status_code == 200, found.text
    return dict(found.json())


@pytest.fixture
def view() -> View:
    """Three jobs that wait for GPUs, and one that can start."""
    jobs = [waiting(1), waiting(2), waiting(3, gpus=2), waiting(4, gpus=0)]
    return View(2000.0, [NODE], {"vision": Team("vision", 2, 4)}, jobs)


def test_waiting_jobs_have_place_request_and_reasons(view: View) -> None:
    found = answer(view)
    assert (found["at"], found["waiting"]) == ("1970-01-01T00:33:20+00:00", 3)
    assert [(entry["job"], entry["place"]) for entry in found["entries"]] == [("job-1", 1), ("job-2", 2), ("job-3", 3)]
    first = found["entries"][0]
    assert first["requests"] == "1 GPU and 1 CPU"
    assert first["since"] == "1970-01-01T00:16:41+00:00"
    assert [reason["rule"] for reason in first["reasons"]] == ["ray"]
    assert first["reasons"][0]["text"].startswith("The job waits for 1 GPU")


def test_one_job_is_selected(view: View) -> None:
    assert [entry["place"] for entry in answer(view, job="job-2")["entries"]] == [2]
    assert answer(view, job="job-4")["entries"] == []


def test_one_job_has_the_latest_start_that_limits_promise(view: View) -> None:
    running = RunningJob(
        *("r", 9, "vision", "bob", JobClass.NORMAL, Request(Resources(gpus=2)), {"a": {"GPU": 2.0}}, 1900.0, 3000.0)
    )
    # Both GPUs are free at the end of the time to save, and one minute more.
    (entry,) = answer(replace(view, running=[running]), job="job-2")["entries"]
    assert entry["latest_start"] == "1970-01-01T00:53:00+00:00"
    (entry,) = answer(replace(view, running=[replace(running, ends_by=None)]), job="job-2")["entries"]
    assert entry["latest_start"] is None


def test_empty_queue_has_no_entries() -> None:
    assert answer(None) == {"at": None, "waiting": 0, "entries": []}


def test_long_queue_is_counted_but_cut() -> None:
    view = View(2000.0, [NODE], {"vision": Team("vision", 2, 4)}, [waiting(n) for n in range(1, MOST_ENTRIES + 3)])
    found = answer(view)
    assert (found["waiting"], len(found["entries"])) == (MOST_ENTRIES + 2, MOST_ENTRIES)


def test_view_is_explained_once_for_all(view: View) -> None:
    async def scenario() -> None:
        explanations = Explanations(lambda: view)
        first, *others = await asyncio.gather(*(explanations.read() for _ in range(3)))
        assert [say.job for say in first.says] == ["job-1", "job-2", "job-3"]
        assert all(other is first for other in others)

    asyncio.run(scenario())


def test_next_view_is_explained_after_rest(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        views = [view]
        explanations = Explanations(lambda: views[-1])
        monkeypatch.setattr(queue, "_REST", 0)
        await explanations.read()
        views.append(replace(view, now=2001.0))
        monkeypatch.setattr(queue, "_REST", 1e9)
        assert (await explanations.read()).view is views[1]
        views.append(replace(view, now=2002.0))
        assert (await explanations.read()).view is views[1]

    asyncio.run(scenario())
