"""Facts of a job that the audit log keeps; its row has the rest."""

from __future__ import annotations

from typing import Any

from mlplatform.gateway.jobs.schema import JobRow

_AUDITED_CHARACTERS = 1000
"""Characters of an entry point that the audit log keeps."""


def facts_of(job: JobRow) -> dict[str, Any]:
    """Return what a job was submitted as."""
    return {"sequence": job.sequence, "user": job.user, "entrypoint": job.entrypoint[:_AUDITED_CHARACTERS]}


def progress_of(job: JobRow) -> dict[str, Any]:
    """Return how far a job is."""
    return {"state": job.state, "stop_requested": job.stop_requested}
