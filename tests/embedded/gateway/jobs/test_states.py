"""The gateway's states, and the errors that it judges, compared with the installed Ray."""

from ray.dashboard.modules.job.common import JobErrorType, JobStatus

from mlplatform_gateway.jobs.states import State

ERROR_TYPES = {
    "RUNTIME_ENV_SETUP_FAILURE",
    "JOB_ENTRYPOINT_COMMAND_ERROR",
    "JOB_ENTRYPOINT_COMMAND_START_ERROR",
    "JOB_SUPERVISOR_ACTOR_DIED",
    "JOB_SUPERVISOR_ACTOR_START_FAILURE",
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE",
}
"""For each of these, tests/unit/gateway/jobs/test_states.py has the verdict."""


def test_ray_error_types_match_unit_tests() -> None:
    assert {kind.value for kind in JobErrorType} == ERROR_TYPES


def test_client_states_are_ray_states() -> None:
    assert {state.of_ray for state in State} == {status.value for status in JobStatus}
    assert all(JobStatus(state.of_ray).is_terminal() == state.final for state in State)
