"""Jobs in the gateway's database, with SQLite: accepted and rejected writes of each step."""

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from sqlalchemy import update
from stored import FAILED, LOST, STOPPED, SUCCEEDED, add, begin, do, end, listed_ids, ray, submitted

from mlplatform.errors import UnreachableError
from mlplatform_gateway.database.migrations.upgrade import upgrade
from mlplatform_gateway.errors import JobExistsError, JobIsOpenError, NoSuchJobError
from mlplatform_gateway.jobs.decisions import Decisions
from mlplatform_gateway.jobs.details import JobList
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import Outcome, State, Transition, Verdict
from mlplatform_gateway.jobs.store import JobStore

# --- Requests ---


def test_stored_job_reads_back_unchanged(store: JobStore) -> None:
    fields = {"runtime_env": {"env_vars": {"Ä": "ü"}}, "metadata": {"workers": "2"}, "entrypoint_num_cpus": 0.5}
    job = submitted(submission_id="mine", **fields)
    do(store.add(job))
    kept = do(JobStore(str(store.engine.url)).get("mine"))
    for column in JobRow.__table__.columns:
        assert getattr(kept, column.name) == getattr(job, column.name), column.name
    assert kept.created.tzinfo is not None
    assert (kept.attempts, kept.losses, kept.stop_requested, kept.ended) == ([], 0, False, None)


def test_job_id_is_unique(store: JobStore) -> None:
    first = add(store, user="ann")
    with pytest.raises(JobExistsError, match="mine already exists"):
        add(store, user="bob")
    assert do(store.get("mine")).user == first.user


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.get("none"),
        lambda store: store.request_stop("none"),
        lambda store: store.delete("none"),
        lambda store: store.begin_attempt("none"),
        lambda store: store.set_message("none", "x", State.WAITING),
        lambda store: store.end_attempt("none", 1, LOST, None, False),
    ],
    ids=["get", "stop", "delete", "begin", "message", "end"],
)
def test_missing_job_is_named(store: JobStore, ask: Callable[[JobStore], Coroutine[Any, Any, Any]]) -> None:
    add(store)
    with pytest.raises(NoSuchJobError, match="Job none does not exist"):
        do(ask(store))


def test_waiting_job_stops_at_once(store: JobStore) -> None:
    add(store)
    stopped, job = do(store.request_stop("mine"))
    assert (stopped, job.state, job.message) == (True, State.STOPPED, "Job was intentionally stopped.")
    assert do(store.get("mine")).ended is not None
    assert do(store.begin_attempt("mine")) is None
    assert do(store.request_stop("mine"))[0] is False


def test_started_job_stops_with_its_attempt(store: JobStore) -> None:
    add(store)
    begin(store)
    stopped, job = do(store.request_stop("mine"))
    assert (stopped, job.state, job.stop_requested, job.ended) == (True, State.STARTING, True, None)
    end(store, LOST)
    assert do(store.get("mine")).state == State.STOPPED


def test_open_job_is_not_deleted(store: JobStore) -> None:
    add(store)
    with pytest.raises(JobIsOpenError, match="'mine', but it is in a non-terminal state PENDING"):
        do(store.delete("mine"))
    begin(store)
    do(store.seen("mine", 1, ray(), "a"))
    with pytest.raises(JobIsOpenError, match="RUNNING"):
        do(store.delete("mine"))


def test_deleting_job_frees_id_and_deletes_attempts(store: JobStore) -> None:
    add(store)
    attempt = begin(store)
    do(store.seen("mine", 1, ray(), "a"))
    end(store, SUCCEEDED)
    assert [one.ray_submission_id for one in do(store.delete("mine")).attempts] == [attempt.ray_submission_id]
    assert listed_ids(store) == []
    assert do(store.job_of(ray_submission_id=attempt.ray_submission_id)) is None
    add(store)
    assert do(store.get("mine")).attempts == []
    assert begin(store).number == 1


# --- Attempts ---


def test_attempt_begins_only_for_waiting_job(store: JobStore) -> None:
    add(store)
    attempt = begin(store)
    assert (attempt.number, attempt.accepted, attempt.in_ray) == (1, False, True)
    assert attempt.ray_submission_id.startswith("mine--1-")
    assert do(store.begin_attempt("mine")) is None
    job = do(store.get("mine"))
    assert (job.state, [one.ray_submission_id for one in job.attempts]) == (State.STARTING, [attempt.ray_submission_id])
    end(store, SUCCEEDED)
    assert do(store.begin_attempt("mine")) is None


def test_ray_details_of_attempt_are_stored(store: JobStore) -> None:
    add(store)
    begin(store)
    do(store.accepted("mine", 1))
    assert do(store.get("mine")).attempts[0].accepted
    do(store.seen("mine", 1, ray("PENDING", None), None))
    assert do(store.get("mine")).state == State.STARTING
    do(store.seen("mine", 1, ray(), "worker-0"))
    do(store.seen("mine", 1, ray(), None))
    job = do(store.get("mine"))
    attempt = job.attempts[0]
    assert (job.state, job.message) == (State.RUNNING, "Job is currently running.")
    assert (attempt.node, attempt.node_id, attempt.ray_job_id) == ("worker-0", "n" * 56, "01000000")
    assert attempt.driver == ray()["driver_info"]


@pytest.mark.parametrize(
    ("verdict", "state"), [(SUCCEEDED, State.SUCCEEDED), (FAILED, State.FAILED), (STOPPED, State.STOPPED)]
)
def test_attempt_ends_once(store: JobStore, verdict: Verdict, state: State) -> None:
    add(store)
    begin(store)
    ended = end(store, verdict)
    assert ended is not None
    assert (ended.state, ended.message) == (state, verdict.reason)
    assert end(store, LOST) is None
    job = do(store.get("mine"))
    assert (job.state, job.message, job.exit_code, job.error_type) == (
        *(state, verdict.reason),
        *(verdict.exit_code, verdict.error_type),
    )
    assert (job.losses, job.attempts[0].outcome) == (0, verdict.outcome)
    assert job.ended is not None


def test_lost_job_waits_before_restart(store: JobStore) -> None:
    add(store, max_restarts_on_loss="2")
    begin(store)
    do(store.seen("mine", 1, ray(), "a"))
    before = datetime.now(UTC)
    end(store, LOST, resumes=True)
    job = do(store.get("mine"))
    assert (job.state, job.losses, job.failures, job.ended) == (State.WAITING, 1, 0, None)
    assert before + timedelta(seconds=1) <= job.not_before <= datetime.now(UTC) + timedelta(seconds=1)
    assert "Attempt 2 continues from its last checkpoint; attempt 1 was lost" in job.message
    assert begin(store).number == 2
    do(store.seen("mine", 2, ray(driver="02000000"), "b"))
    assert do(store.get("mine")).message == f"Job is running again. {job.message}"


@pytest.mark.parametrize("state", State)
def test_job_gets_state_of_its_transition(state: State, store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlplatform_gateway.jobs.store.next_state", lambda *_: Transition(state, "why"))
    add(store)
    begin(store)
    end(store, LOST)
    job = do(store.get("mine"))
    assert (job.state, job.message, job.ended is not None) == (state, "why", state.final)


def test_job_restarts_up_to_its_limits(store: JobStore) -> None:
    add(store, max_restarts_on_loss="1", max_restarts_on_failure="1")
    for number, verdict in enumerate((LOST, FAILED, LOST), 1):
        begin(store)
        end(store, verdict, number=number)
    job = do(store.get("mine"))
    assert (job.state, job.losses, job.failures) == (State.FAILED, 2, 1)
    assert "lost 2 times" in job.message
    assert [attempt.outcome for attempt in job.attempts] == ["LOST", "FAILED", "LOST"]


def test_ray_id_in_reason_is_replaced_by_job_id(store: JobStore) -> None:
    add(store)
    attempt = begin(store)
    end(store, Verdict(Outcome.FAILED, f"Job {attempt.ray_submission_id} broke."))
    assert do(store.get("mine")).message == "Job mine broke."


def test_ended_attempt_keeps_driver_details(store: JobStore) -> None:
    add(store)
    begin(store)
    do(store.seen("mine", 1, ray(), "a"))
    do(store.end_attempt("mine", 1, LOST, ray("FAILED", None), False))
    attempt = do(store.get("mine")).attempts[0]
    assert (attempt.ray_job_id, attempt.driver, attempt.node) == ("01000000", ray()["driver_info"], "a")


def test_only_waiting_job_gets_capacity_message(store: JobStore) -> None:
    add(store)
    do(store.set_message("mine", "It waits.", State.WAITING))
    assert do(store.get("mine")).message == "It waits."
    begin(store)
    do(store.set_message("mine", "It still waits.", State.WAITING))
    assert "It still waits." not in do(store.get("mine")).message


def test_only_waiting_jobs_get_explanations(store: JobStore) -> None:
    numbers = [add(store, name).sequence for name in ("a", "b", "c")]
    begin(store, "b")
    do(Decisions(store.engine).explain({"They wait.": numbers[:2], "It waits.": numbers[2:]}))
    assert [do(store.get(name)).message for name in ("a", "c")] == ["They wait.", "It waits."]
    assert do(store.get("b")).message != "They wait."


# --- Ray's ids ---


def test_job_is_found_by_ray_ids_of_all_attempts(store: JobStore) -> None:
    add(store)
    first = begin(store)
    do(store.seen("mine", 1, ray(), "a"))
    end(store, LOST)
    begin(store)
    do(store.seen("mine", 2, ray(driver="02000000"), "a"))
    assert [do(store.get(driver)).id for driver in ("01000000", "02000000")] == ["mine", "mine"]
    assert (
        do(store.job_of(ray_submission_id=first.ray_submission_id)) == do(store.job_of(ray_job_id="02000000")) == "mine"
    )
    assert do(store.job_of(ray_submission_id="none")) is None
    assert do(store.job_of(ray_job_id="03000000")) is None


def test_reused_ray_job_id_means_latest_job(store: JobStore) -> None:
    for job_id in ("a", "b"):
        add(store, job_id)
    for job_id in ("b", "a"):
        begin(store, job_id)
        do(store.seen(job_id, 1, ray(), "n"))
    assert do(store.get("01000000")).id == do(store.job_of(ray_job_id="01000000")) == "a"


def test_submission_id_takes_precedence_over_ray_id(store: JobStore) -> None:
    add(store, "other")
    begin(store, "other")
    do(store.seen("other", 1, ray(), "a"))
    add(store, "01000000")
    assert do(store.get("01000000")).id == "01000000"


# --- Housekeeping ---


def test_runs_close_after_each_attempt_and_job(store: JobStore) -> None:
    sequence = add(store).sequence
    add(store, "running")
    for job_id in ("mine", "running"):
        begin(store, job_id)
    assert do(store.unclosed()) == []
    end(store, LOST)
    assert do(store.unclosed()) == [sequence]
    do(store.runs_closed(sequence, [1], job_too=False))
    assert do(store.unclosed()) == []
    begin(store)
    end(store, SUCCEEDED, number=2)
    do(store.runs_closed(sequence, [1, 2], job_too=False))
    assert do(store.unclosed()) == [sequence]
    do(store.runs_closed(sequence, [1, 2], job_too=True))
    assert do(store.unclosed()) == []


def test_deleted_job_has_no_runs_to_close(store: JobStore) -> None:
    sequence = add(store).sequence
    do(store.request_stop("mine"))
    do(store.delete("mine"))
    assert do(store.by_sequence(sequence)) is None
    do(store.runs_closed(sequence, [], job_too=True))


def test_runs_of_job_without_attempts_are_closed(store: JobStore) -> None:
    sequence = add(store).sequence
    do(store.request_stop("mine"))
    assert do(store.unclosed()) == [sequence]
    do(store.runs_closed(sequence, [], job_too=True))
    assert do(store.unclosed()) == []


def test_nul_characters_in_reason_are_stored(store: JobStore) -> None:
    """Ray puts the last log lines into its message, and Postgres rejects text with a NUL character."""
    add(store)
    begin(store)
    end(store, Verdict(Outcome.FAILED, "Last lines: a\0b"))
    job = do(store.get("mine"))
    assert (job.message, job.attempts[0].reason) == ("Last lines: ab", "Last lines: ab")
    with pytest.raises(NoSuchJobError):
        do(store.get("a\0b"))


def test_packages_are_kept_until_job_is_deleted_or_old(store: JobStore) -> None:
    modules = {"py_modules": ["gcs://b.whl", "/local"]}
    ended = {"working_dir": "gcs://c.zip"}
    for job_id, runtime_env in (("a", {"working_dir": "gcs://a.zip"}), ("b", modules), ("none", {}), ("c", ended)):
        do(store.add(submitted(submission_id=job_id, runtime_env=runtime_env)))
    assert do(store.packages()) == {"a.zip", "b.whl", "c.zip"}
    begin(store, "c")
    end(store, SUCCEEDED, "c")
    assert do(store.packages()) == {"a.zip", "b.whl", "c.zip"}
    do(store.delete("c"))
    assert do(store.packages()) == {"a.zip", "b.whl"}
    begin(store, "a")
    end(store, SUCCEEDED, "a")
    with store.engine.begin() as connection:
        connection.execute(update(JobRow).where(JobRow.id == "a").values(ended=datetime.now(UTC) - timedelta(days=8)))
    assert do(store.packages()) == {"b.whl"}


def test_ends_include_those_of_deleted_jobs(store: JobStore) -> None:
    for job_id in ("mine", "again"):
        add(store, job_id)
        do(store.request_stop(job_id))
    do(store.delete("again"))
    add(store, "again")
    ended, still_open = do(store.ends())
    assert set(ended) == {"mine", "again"}
    assert still_open == {"again"}


def test_only_latest_ended_attempts_stay_in_ray(store: JobStore) -> None:
    submission_ids = []
    for job_id in ("a", "b", "c", "open"):
        add(store, job_id)
        submission_ids.append(begin(store, job_id).ray_submission_id)
    for job_id in ("a", "b", "c"):
        end(store, SUCCEEDED, job_id)
    assert do(store.left_in_ray(1)) == [submission_ids[1], submission_ids[0]]
    do(store.gone_from_ray(submission_ids[0]))
    do(store.gone_from_ray("none"))
    assert do(store.left_in_ray(1)) == [submission_ids[1]]
    assert do(store.left_in_ray(2)) == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.ping(),
        lambda store: JobList(store.engine).entries(),
        lambda store: store.request_stop("mine"),
        lambda store: anyio.to_thread.run_sync(upgrade, store.engine),
    ],
    ids=["ping", "list", "stop", "upgrade"],
)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_unavailable_database_is_named(
    tmp_path: Path, closed_port: int, kind: str, ask: Callable[[JobStore], Coroutine[Any, Any, Any]]
) -> None:
    nowhere = {
        "sqlite": f"sqlite:///{tmp_path}/none/gateway.db",
        "postgres": f"postgresql+psycopg2://a:b@127.0.0.1:{closed_port}/gateway",
    }
    with pytest.raises(UnreachableError, match="The gateway's database does not answer") as error:
        do(ask(JobStore(nowhere[kind])))
    assert len(str(error.value).splitlines()) == 1


def test_failed_step_is_rolled_back(store: JobStore) -> None:
    add(store)
    begin(store)
    with pytest.raises(KeyError):
        do(store.seen("mine", 1, {"driver_node_id": "n"}, "a"))
    assert not do(store.get("mine")).attempts[0].accepted
