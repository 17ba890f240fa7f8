"""Reports of a job's runs to the gateway, which links to them and ends those that the job leaves open."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from mlplatform.compat import mlflow as mlflow_compat
from mlplatform.contract import RUNS, TAG_JOB
from mlplatform.errors import AccessError, JobError
from mlplatform.settings.job import settings
from mlplatform.tracking.outbox import Outbox

if TYPE_CHECKING:
    from mlflow.entities import Run

_FLUSH_SECONDS = 30.0
"""Time limit for the last reports of a process; the gateway restarts in seconds."""

_log = logging.getLogger(__name__)


def watch() -> None:
    """Report each run that this process creates with the job's tag, by whatever library."""
    mlflow_compat.watch_new_runs(_created)


def report(run_id: str, own: bool = False) -> None:
    """Report that this attempt has opened or continued a run at the platform's MLflow; return at once.

    Args:
        run_id: id of the run.
        own: it is the run that all attempts of the job share.
    """
    if settings().gateway and settings().attempt_token:
        _outbox(os.getpid()).put([(run_id, own)])


def _created(server: str, run: Run) -> None:
    if settings().job_id and run.data.tags.get(TAG_JOB) == settings().job_id and settings().is_own(server):
        report(run.info.run_id)


@cache
def _outbox(_pid: int) -> Outbox:
    """Return the queue of this process; a forked one has none of its parent's threads."""
    outbox = Outbox(_Gateway())
    atexit.register(outbox.close, _FLUSH_SECONDS)
    return outbox


class _Gateway:
    """Receiver of the reports."""

    name = "the gateway"

    def open(self) -> None:
        # Here, because it takes time to import.
        from mlplatform.client.connection import Connection

        self._link = Connection(settings().model_copy(update={"ray_address": settings().gateway}))

    def send(self, items: Sequence[tuple[str, bool]]) -> None:
        for run_id, own in items:
            try:
                self._link.call("PUT", f"{RUNS}/{run_id}", params={"own": int(own)})
            except (AccessError, JobError) as error:
                _log.warning("The gateway does not record the run %s: %s", run_id, error)
