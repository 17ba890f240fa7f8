"""Errors of single jobs: logged at intervals, and isolated from other jobs."""

import pytest

from mlplatform.errors import UnreachableError
from mlplatform_gateway.errors import NoSuchJobError
from mlplatform_gateway.jobs import containment
from mlplatform_gateway.jobs.containment import JobErrors


def fail(errors: JobErrors, job_id: str) -> None:
    with errors.contained(job_id):
        raise KeyError(job_id)


def test_error_is_logged_with_its_traceback_once_per_job(caplog: pytest.LogCaptureFixture) -> None:
    errors = JobErrors()
    for job_id in ("a", "a", "b"):
        fail(errors, job_id)
    assert [record.getMessage() for record in caplog.records] == [
        "A step of job a failed and will be retried.",
        "A step of job b failed and will be retried.",
    ]
    assert all(record.exc_info for record in caplog.records)


def test_persistent_error_is_logged_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(containment, "_LOG_AGAIN_SECONDS", 0.0)
    errors = JobErrors()
    for _ in range(2):
        fail(errors, "a")
    assert len(caplog.records) == 2


def test_deleted_job_is_not_reported_as_error(caplog: pytest.LogCaptureFixture) -> None:
    with JobErrors().contained("a"):
        raise NoSuchJobError("Job a does not exist")
    assert not caplog.records


def test_outage_concerns_every_job() -> None:
    with pytest.raises(UnreachableError), JobErrors().contained("a"):
        raise UnreachableError("The database does not answer.")
