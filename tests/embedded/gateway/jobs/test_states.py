"""The gateway's states and verdicts, compared with the installed Ray."""

import pytest
from ray.dashboard.modules.job.common import JobErrorType, JobStatus

from mlplatform.gateway.jobs.states import Observation, Outcome, State, judge

OWN_FAULTS = {"RUNTIME_ENV_SETUP_FAILURE", "JOB_ENTRYPOINT_COMMAND_ERROR"}
"""Ray's error types that are the job's own fault; all others are losses of the node or of Ray."""

OTHERS = {
    "JOB_ENTRYPOINT_COMMAND_START_ERROR",
    "JOB_SUPERVISOR_ACTOR_DIED",
    "JOB_SUPERVISOR_ACTOR_START_FAILURE",
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE",
}


def test_ray_error_types_match_unit_tests() -> None:
    assert {kind.value for kind in JobErrorType} == OWN_FAULTS | OTHERS


@pytest.mark.parametrize("kind", [kind.value for kind in JobErrorType])
def test_each_error_type_is_failure_or_loss(kind: str) -> None:
    details = {"status": "FAILED", "error_type": kind, "message": "It broke.", "driver_exit_code": 1}
    verdict = judge(Observation(details))
    assert verdict is not None
    assert verdict.outcome == (Outcome.FAILED if kind in OWN_FAULTS else Outcome.LOST)


@pytest.mark.parametrize("status", [status.value for status in JobStatus if status != JobStatus.FAILED])
def test_each_other_status_has_verdict(status: str) -> None:
    expected = {"SUCCEEDED": Outcome.SUCCEEDED, "STOPPED": Outcome.STOPPED}.get(status)
    verdict = judge(Observation({"status": status}))
    assert (verdict and verdict.outcome) == expected


def test_client_states_are_ray_states() -> None:
    assert {state.of_ray for state in State} == {status.value for status in JobStatus}
    assert all(JobStatus(state.of_ray).is_terminal() == state.final for state in State)
