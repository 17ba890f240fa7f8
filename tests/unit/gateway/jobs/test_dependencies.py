"""Jobs that start after others: each starts once all of them have succeeded, and is cancelled if one has not."""

import asyncio

import pytest
from gateway_parts import BOUND_S, Gateway
from stored import FAILED, STOPPED, SUCCEEDED, add, begin, do, end

from mlplatform_gateway.errors import DependencyError, NoSuchJobError
from mlplatform_gateway.jobs import dependencies
from mlplatform_gateway.jobs.overview import JobOverview
from mlplatform_gateway.jobs.resuming import Resumption
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import State, Verdict
from mlplatform_gateway.jobs.store import JobStore


def run(store: JobStore, job_id: str, verdict: Verdict = SUCCEEDED) -> None:
    """Let a job begin, and end with a verdict."""
    end(store, verdict, job_id, begin(store, job_id).number)


def after(store: JobStore, job_id: str, *others: str) -> JobRow:
    add(store, job_id, **{"mlplatform.after": ",".join(others)})
    return do(store.get(job_id))


def state(store: JobStore, job_id: str) -> tuple[str, str]:
    job = do(store.get(job_id))
    return job.state, job.message


def test_job_waits_for_resources_once_all_have_succeeded(store: JobStore) -> None:
    for job_id in ("a", "b"):
        add(store, job_id)
    held = after(store, "c", "a", "b")
    assert (held.state, held.message) == (State.HELD, "The job starts after a, b.")
    assert do(store.begin_attempt("c")) is None
    run(store, "a")
    assert state(store, "c") == (State.HELD, "The job starts after b.")
    add(store, "d")
    run(store, "b")
    released = do(store.get("c"))
    assert (released.state, released.id, released.ended) == (State.WAITING, "c", None)
    assert released.since > held.created
    assert [job.id for job in do(store.open_jobs())] == ["d", "c"], "it arrives when it is released"


def test_job_that_has_succeeded_is_not_waited_for(store: JobStore) -> None:
    add(store, "a")
    run(store, "a")
    assert after(store, "b", "a").state == State.WAITING


@pytest.mark.parametrize(("verdict", "became"), [(FAILED, "FAILED"), (STOPPED, "STOPPED")])
def test_failure_cancels_all_jobs_after_it(verdict: Verdict, became: str, store: JobStore) -> None:
    for job_id in ("a", "other"):
        add(store, job_id)
    after(store, "b", "a", "other")
    after(store, "c", "b")
    run(store, "a", verdict)
    cancelled = "Job was cancelled, because job {}, after which it would start, is {}."
    assert state(store, "b") == (State.STOPPED, cancelled.format("a", became))
    assert state(store, "c") == (State.STOPPED, cancelled.format("b", "STOPPED"))
    assert state(store, "other")[0] == State.WAITING


def test_long_chain_is_cancelled(store: JobStore) -> None:
    add(store, "job-0")
    for number in range(1, 150):
        add(store, f"job-{number}", **{"mlplatform.after": f"job-{number - 1}"})
    do(store.request_stop("job-0"))
    assert state(store, "job-149")[0] == State.STOPPED
    assert do(store.open_jobs()) == []


def test_stop_of_waiting_job_cancels_those_after_it(store: JobStore) -> None:
    add(store, "a")
    after(store, "b", "a")
    do(store.request_stop("a"))
    assert state(store, "b")[0] == State.STOPPED


def test_deleted_job_has_still_succeeded(store: JobStore) -> None:
    for job_id in ("a", "other"):
        add(store, job_id)
    after(store, "b", "a", "other")
    run(store, "a")
    do(store.delete("a"))
    add(store, "a")
    assert state(store, "b") == (State.HELD, "The job starts after other.")
    do(store.request_stop("b"))
    assert do(Resumption(store.engine).resume("b", "It was resumed.")).state == State.HELD
    run(store, "other")
    assert state(store, "b")[0] == State.WAITING, "the new job of this id is another"


def test_held_job_is_stopped(store: JobStore) -> None:
    add(store, "a")
    after(store, "b", "a")
    do(store.request_stop("b"))
    run(store, "a")
    assert state(store, "b") == (State.STOPPED, "Job was intentionally stopped.")


def test_ids_are_compared_as_a_whole(store: JobStore) -> None:
    others = ("a", "aa", "ab", "A_")
    for job_id in (*others, "a_"):
        add(store, job_id)
    after(store, "last", "a_")
    for job_id in others:
        run(store, job_id, FAILED)
    assert state(store, "last")[0] == State.HELD
    run(store, "a_")
    assert state(store, "last")[0] == State.WAITING


def test_no_job_starts_after_one_that_cannot_succeed(store: JobStore) -> None:
    with pytest.raises(NoSuchJobError, match="Job missing does not exist, so no job can start after it"):
        after(store, "b", "missing")
    add(store, "a")
    run(store, "a", FAILED)
    with pytest.raises(DependencyError, match="Job a is FAILED, so no job starts after it"):
        after(store, "b", "a")
    with pytest.raises(NoSuchJobError):
        do(store.get("b"))


def test_failed_transaction_neither_ends_nor_releases(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    add(store, "a")
    after(store, "b", "a")
    begin(store, "a")

    def fail(*_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(dependencies, "arrive", fail)
        with pytest.raises(RuntimeError):
            end(store, SUCCEEDED, "a")
    assert (state(store, "a")[0], state(store, "b")[0]) == (State.STARTING, State.HELD)
    assert end(store, SUCCEEDED, "a") is not None
    assert state(store, "b")[0] == State.WAITING
    assert end(store, SUCCEEDED, "a") is None


def test_cancelled_job_is_held_again_when_resumed(store: JobStore) -> None:
    add(store, "a")
    after(store, "b", "a")
    run(store, "a", FAILED)
    resumption = Resumption(store.engine)
    with pytest.raises(DependencyError, match="Job a is FAILED"):
        do(resumption.resume("b", "It was resumed."))
    do(resumption.resume("a", "It was resumed."))
    assert do(resumption.resume("b", "It was resumed.")).state == State.HELD
    run(store, "a")
    run(store, "b", FAILED)
    do(store.delete("a"))
    assert do(resumption.resume("b", "It was resumed.")).state == State.WAITING, "it has run already"


def test_held_jobs_are_listed_apart(store: JobStore) -> None:
    add(store, "a")
    after(store, "b", "a")
    overview = JobOverview(store.engine)
    assert [job.id for job in do(overview.later())] == [job.id for job in do(overview.later("b"))] == ["b"]
    assert do(overview.later("a")) == []
    assert [job.id for job in do(overview.read()).waiting] == ["a", "b"]


async def test_planner_considers_job_only_after_the_other(gateway: Gateway) -> None:
    await gateway.started(entrypoint_num_cpus=4.0)
    await gateway.submit(submission_id="next", metadata={"mlplatform.after": "mine"}, entrypoint_num_cpus=4.0)
    await gateway.submit(submission_id="other", entrypoint_num_cpus=4.0)
    await gateway.until_job(lambda job: "waits" in job.message, "other")
    view = gateway.reconciler.starter.view
    assert view is not None
    assert [job.id for job in view.waiting] == ["other"]
    await gateway.end()
    await gateway.until_state(State.RUNNING, "other")
    await gateway.until_job(lambda job: job.state == State.WAITING and "waits" in job.message, "next")


async def test_log_of_cancelled_job_ends(gateway: Gateway) -> None:
    await gateway.started()
    await gateway.submit(submission_id="next", metadata={"mlplatform.after": "mine"})
    await gateway.logs.note("next", "It is held.")
    await gateway.until_job(lambda _: "next" in gateway.reconciler._open, "next")
    await gateway.end("FAILED", message="It broke.", driver_exit_code=1)
    async with asyncio.timeout(BOUND_S):
        assert [text async for text in gateway.logs.follow("next")]
    assert (await gateway.store.get("next")).state == State.STOPPED
