"""Attempts that Ray cannot start: they fail with the reason, and they can be stopped at once."""

from __future__ import annotations

import sys
import time
import uuid
from typing import Any

import pytest
from embedded import succeeded
from waiting import wait_for

from mlplatform.client.connection import Connection
from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings

ENDED = ("FAILED", "STOPPED", "SUCCEEDED")


def submit(reached: Settings, runtime_env: dict[str, Any]) -> str:
    """Submit a job as Ray's clients do."""
    request = {"entrypoint": "echo ran", "runtime_env": runtime_env, "submission_id": f"start-{uuid.uuid4().hex[:8]}"}
    return str(Connection(reached).call("POST", "/api/jobs/", json=request).json()["submission_id"])


@pytest.fixture(scope="module")
def failed(reached: Settings) -> dict[str, tuple[str, str]]:
    """State and log of a job per environment that cannot be made, by the kind of environment; all start together."""
    wanted = {
        "unresolved": {"py_executable": "uv run --offline --no-project --with no-such-package-zz==1"},
        "missing": {"py_executable": "/no/such/python -u"},
        "container": {"image_uri": "registry.invalid/python:3"},
        "conda": {"conda": "no_such_environment"},
    }
    with Jobs(reached) as jobs:
        ids = {name: submit(reached, env) for name, env in wanted.items()}
        wait_for(lambda: all(jobs.get(job_id).status in ENDED for job_id in ids.values()), "all jobs to end")
        return {name: (jobs.get(job_id).status, jobs.logs(job_id)) for name, job_id in ids.items()}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("unresolved", "No solution found"),
        ("missing", "No such file or directory"),
        ("container", "podman"),
        ("conda", "conda"),
    ],
)
def test_environment_that_cannot_be_made_fails_job_with_reason(
    kind: str, reason: str, failed: dict[str, tuple[str, str]]
) -> None:
    status, log = failed[kind]
    assert status == "FAILED"
    assert reason in "\n".join(log.splitlines()[-20:])
    assert "\nran" not in log


def test_python_of_job_starts_with_its_variables(reached: Settings) -> None:
    own = {"py_executable": f"env TWO=2 {sys.executable}", "env_vars": {"PATH": "/nowhere:${PATH}"}}
    with Jobs(reached) as jobs:
        job_id = submit(reached, own)
        assert "\nran" in succeeded(jobs, job_id)


def test_start_that_does_not_end_is_stopped_at_once(reached: Settings) -> None:
    with Jobs(reached) as jobs:
        job_id = submit(reached, {"py_executable": "sleep 1000 #"})
        wait_for(lambda: "Runtime env is setting up" in jobs.logs(job_id), "Ray to begin")
        began = time.monotonic()
        assert jobs.stop(job_id)
        assert jobs.wait(job_id, 60).status == "STOPPED"
        assert time.monotonic() - began < 20
