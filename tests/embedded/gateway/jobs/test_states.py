"""The gateway's states and verdicts, compared with the installed Ray."""

import pytest
from ray.dashboard.modules.job.common import JobErrorType, JobStatus

from mlplatform.gateway.jobs.states import Observation, Outcome, State, judge

OWN_FAULTS = {"RUNTIME_ENV_SETUP_FAILURE", "JOB_ENTRYPOINT_COMMAND_ERROR"}
"""Of Ray's error types; all others are faults of what ran the job."""

OTHERS = {
    "JOB_ENTRYPOINT_COMMAND_START_ERROR",
    "JOB_SUPERVISOR_ACTOR_DIED",
    "JOB_SUPERVISOR_ACTOR_START_FAILURE",
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE",
}


def test_the_error_types_are_those_that_the_unit_tests_judge() -> None:
    assert {kind.value for kind in JobErrorType} == OWN_FAULTS | OTHERS


@pytest.mark.parametrize("kind", [kind.value for kind in JobErrorType])
def test_each_error_type_is_the_jobs_own_fault_or_a_loss(kind: str) -> None:
    details = {"status": "FAILED", "error_type": kind, "message": "It broke.", "driver_exit_code": 1}
    verdict = judge(Observation(details))
    assert verdict is not None
    assert verdict.outcome == (Outcome.FAILED if kind in OWN_FAULTS else Outcome.LOST)


@pytest.mark.parametrize("status", [status.value for status in JobStatus if status != JobStatus.FAILED])
def test_each_status_that_is_not_a_failure_is_judged(status: str) -> None:
    expected = {"SUCCEEDED": Outcome.SUCCEEDED, "STOPPED": Outcome.STOPPED}.get(status)
    verdict = judge(Observation({"status": status}))
    assert (verdict and verdict.outcome) == expected


def test_clients_see_states_that_ray_has() -> None:
    assert {state.of_ray for state in State} == {status.value for status in JobStatus}
    assert all(JobStatus(state.of_ray).is_terminal() == state.final for state in State)
