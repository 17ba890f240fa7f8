"""Verdicts on attempts, and the next states of their jobs."""

from typing import Any

import pytest
from described import schemas

from mlplatform_gateway.jobs import states
from mlplatform_gateway.jobs.states import (
    Leaving,
    Outcome,
    RestartCounts,
    State,
    Verdict,
    after_notice,
    judge,
    next_state,
)

OWN_FAULTS = ("JOB_ENTRYPOINT_COMMAND_ERROR", "RUNTIME_ENV_SETUP_FAILURE")
"""Ray's error types that are the job's own fault; all others are losses of the node or of Ray."""

KINDS = [
    None,
    *OWN_FAULTS,
    "JOB_ENTRYPOINT_COMMAND_START_ERROR",
    "JOB_SUPERVISOR_ACTOR_DIED",
    "JOB_SUPERVISOR_ACTOR_START_FAILURE",
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE",
]
"""Ray's error types; tests/embedded/gateway/jobs/test_states.py compares them with the installed Ray."""

STATUSES = {"PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"}
"""Ray's job states, compared in the same way."""

LOST = Verdict(Outcome.LOST, "the node of its driver has died")
FAILED = Verdict(Outcome.FAILED, "Job failed:\nValueError: 3", 1)
STOPPED = Verdict(Outcome.STOPPED, "Job was intentionally stopped.")
SUCCEEDED = Verdict(Outcome.SUCCEEDED, "Job finished successfully.", 0)


def failed(kind: str | None = "JOB_ENTRYPOINT_COMMAND_ERROR", message: str = "It broke.", **more: Any) -> Verdict:
    """The verdict on an attempt that Ray lists as failed."""
    details = {"status": "FAILED", "error_type": kind, "message": message, "driver_exit_code": 1}
    verdict = judge(details, **more)
    assert verdict is not None
    return verdict


def count(
    losses: int = 0, max_restarts_on_loss: int = 3, failures: int = 0, max_restarts_on_failure: int = 0
) -> RestartCounts:
    return RestartCounts(losses + failures + 1, losses, max_restarts_on_loss, failures, max_restarts_on_failure)


@pytest.mark.parametrize("state", State)
def test_each_state_waits_has_attempt_or_is_final(state: State) -> None:
    assert state.comes_later + state.waits + state.has_attempt + state.final == 1
    assert state.has_attempt or not state.runs
    assert state.of_ray in STATUSES
    assert state in str(states.__doc__), "the diagram lacks it"


def test_openapi_lists_all_states_and_outcomes() -> None:
    assert schemas()["JobWithAttempts"]["properties"]["state"]["enum"] == list(State)
    assert schemas()["Attempt"]["properties"]["outcome"]["enum"] == [*Outcome, None]
    assert set(schemas()["Job"]["properties"]["status"]["enum"]) == STATUSES


# --- judge ---


@pytest.mark.parametrize("unavailable", [(), ("the storage",)])
@pytest.mark.parametrize("node_dead", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_failure_counts_only_if_ray_was_healthy(
    kind: str | None, node_dead: bool, unavailable: tuple[str, ...]
) -> None:
    own = kind is None or kind in OWN_FAULTS
    verdict = failed(kind, node_dead=node_dead, unavailable=unavailable)
    assert verdict.outcome == (Outcome.FAILED if own and not node_dead and not unavailable else Outcome.LOST)
    assert (verdict.exit_code, verdict.error_type) == (1, kind)


@pytest.mark.parametrize("unavailable", [(), ("the storage",)])
@pytest.mark.parametrize("node_dead", [False, True])
@pytest.mark.parametrize("status", sorted(STATUSES - {"FAILED"}))
def test_running_attempt_is_lost_only_with_its_node(status: str, node_dead: bool, unavailable: tuple[str, ...]) -> None:
    verdict = judge({"status": status}, node_dead, unavailable)
    ended = {"SUCCEEDED": Outcome.SUCCEEDED, "STOPPED": Outcome.STOPPED}
    expected = ended.get(status, Outcome.LOST if node_dead else None)
    assert (verdict and verdict.outcome) == expected


def test_attempt_unknown_to_ray_is_lost() -> None:
    assert judge(None) == Verdict(Outcome.LOST, "Ray was restarted and has no record of it")


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (failed("JOB_SUPERVISOR_ACTOR_DIED"), "the process that ran it has died"),
        (failed(node_dead=True), "it ended with exit code 1 as the node of its driver died"),
        (failed(unavailable=["the storage", "Ray's head"]), "after the storage and Ray's head had been unavailable"),
        (failed(message=""), "Job failed."),
        (failed(), "It broke."),
    ],
)
def test_verdict_contains_reason(verdict: Verdict, reason: str) -> None:
    assert reason in verdict.reason


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "message",
    [
        "ray.exceptions.OutOfMemoryError: Task was killed",
        "Task was killed due to the node running low on memory.",
        "Killed by the memory monitor.",
    ],
)
def test_out_of_memory_is_failure_while_node_lives(kind: str | None, message: str) -> None:
    verdict = failed(kind, message, unavailable=["the storage"])
    assert (verdict.outcome, verdict.reason) == (Outcome.FAILED, message)
    assert failed(kind, message, node_dead=True).outcome is Outcome.LOST


# --- after_notice ---


@pytest.mark.parametrize("limit_s", [None, 3600.0])
@pytest.mark.parametrize("verdict", [FAILED, STOPPED])
def test_attempt_that_was_asked_to_leave_has_left(verdict: Verdict, limit_s: float | None) -> None:
    leaving = Leaving("Others wait.", limit_s)
    after = after_notice(verdict, leaving)
    outcome = Outcome.PREEMPTED if limit_s is None else Outcome.FAILED
    assert after == Verdict(outcome, "Others wait.", verdict.exit_code, verdict.error_type, limit_s)
    assert after_notice(after, leaving) == after


@pytest.mark.parametrize("verdict", [LOST, SUCCEEDED])
def test_attempt_that_is_lost_or_done_has_not_left(verdict: Verdict) -> None:
    assert after_notice(verdict, Leaving("Others wait.", 3600.0)) == verdict
    assert after_notice(FAILED, None) == FAILED


# --- next_state ---


def test_job_at_its_limit_is_not_restarted() -> None:
    verdict = after_notice(FAILED, Leaving("Others wait.", 5400.0))
    transition = next_state(verdict, count(max_restarts_on_failure=3), False, True)
    assert (transition.state, transition.message) == (
        State.FAILED,
        "The job reached its limit of 90 min; `mlplatform resume` continues it, if needed with a higher --limit.",
    )
    assert next_state(verdict, count(), True, True).state is State.STOPPED


@pytest.mark.parametrize(("used", "delay_s"), [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16), (5, 32), (6, 60), (999, 60)])
@pytest.mark.parametrize("verdict", [LOST, FAILED])
def test_restart_delay_grows_to_one_minute(verdict: Verdict, used: int, delay_s: float) -> None:
    transition = next_state(verdict, RestartCounts(2 * used + 1, used, 1000, used, 1000), False, False)
    assert (transition.state, transition.delay_s) == (State.WAITING, delay_s)


@pytest.mark.parametrize("resumes", [False, True])
def test_message_has_attempt_reason_and_resume_point(resumes: bool) -> None:
    where = "continues from its last checkpoint" if resumes else "starts from the beginning"
    assert next_state(LOST, count(losses=1), False, resumes).message == (
        f"Attempt 3 {where}; attempt 2 was lost: the node of its driver has died."
    )


def test_losses_and_failures_are_counted_separately() -> None:
    transition = next_state(
        FAILED, count(losses=3, max_restarts_on_loss=3, failures=1, max_restarts_on_failure=2), False, False
    )
    assert (transition.state, transition.delay_s) == (State.WAITING, 2)
    assert transition.message == "Attempt 6 starts from the beginning; attempt 5 failed: exit code 1."


@pytest.mark.parametrize(
    ("used", "times"), [(0, "once"), (1, "2 times"), (3, "4 times")], ids=["none", "one", "the default"]
)
def test_too_many_losses_fail_and_name_option(used: int, times: str) -> None:
    transition = next_state(LOST, count(losses=used, max_restarts_on_loss=used), False, True)
    assert transition.state is State.FAILED
    assert transition.message == (
        f"Job was lost {times}, the last time because the node of its driver has died; "
        "`max_restarts_on_loss` allows more."
    )


def test_failure_without_restarts_keeps_full_message() -> None:
    transition = next_state(FAILED, count(), False, False)
    assert (transition.state, transition.message, transition.delay_s) == (State.FAILED, FAILED.reason, 0)


@pytest.mark.parametrize("verdict", [LOST, FAILED, STOPPED])
def test_stopping_job_is_not_restarted(verdict: Verdict) -> None:
    assert next_state(verdict, count(max_restarts_on_failure=3), True, True).state is State.STOPPED


def test_job_that_ray_rejects_is_not_restarted() -> None:
    verdict = Verdict(Outcome.FAILED, "Ray rejects the job.", refused=True)
    transition = next_state(verdict, count(max_restarts_on_failure=3), False, True)
    assert (transition.state, transition.message) == (State.FAILED, "Ray rejects the job.")
    assert next_state(verdict, count(), True, True).state is State.STOPPED


def test_stop_outside_gateway_ends_job() -> None:
    assert next_state(STOPPED, count(max_restarts_on_failure=3), False, True).state is State.STOPPED


@pytest.mark.parametrize("stop_requested", [False, True])
def test_success_is_kept_despite_requested_stop(stop_requested: bool) -> None:
    assert next_state(SUCCEEDED, count(), stop_requested, False).state is State.SUCCEEDED


def test_client_states_are_ray_states() -> None:
    assert {state.of_ray for state in State} == STATUSES
    assert {state.of_ray for state in State if not state.final} == {"PENDING", "RUNNING"}
