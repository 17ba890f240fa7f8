"""The end of a job's run: its status, its traceback, and who may set them."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from mlplatform.compat import mlflow as mlflow_compat
from mlplatform.contract import TAG_ATTEMPT, TAG_HOLDER
from mlplatform.settings.job import settings
from mlplatform.tracking.server import check, find_run

if TYPE_CHECKING:
    from mlflow.entities import Run


def end_run(address: str, run_id: str, status: str, guest: bool) -> None:
    """End the run, or leave it if it is another's; an MLflow that is away does not hide what ended the job."""
    import mlflow

    client = mlflow.MlflowClient(address)
    try:
        run = client.get_run(run_id)
        if _is_of_a_later_attempt(run):
            mlflow_compat.forget_active_runs()
            return
        if status == "FAILED":
            with suppress(Exception):
                client.log_text(run_id, traceback.format_exc(), "traceback.txt")
        if guest or status == "KILLED":
            status = _status_to_leave(run, status, guest)
        # What user code has left open inside ends with it.
        while (active := mlflow.active_run()) and active.info.run_id != run_id:
            mlflow.end_run(status)
        if mlflow.active_run():
            mlflow.end_run(status)
        else:
            client.set_terminated(run_id, status)
        if not guest:
            client.delete_tag(run_id, TAG_HOLDER)
    except Exception as error:
        said = f"MLflow at {address} did not take that run {run_id} ended {status}: {error}"
        print(said, file=sys.stderr, flush=True)


def _is_of_a_later_attempt(run: Run) -> bool:
    """Whether the run has been taken over; told by MLflow alone, as there is no time to wait for the storage.

    Before its successor has rejoined a run, a replaced attempt may end it: rejoining opens it again.
    """
    attempt = run.data.tags.get(TAG_ATTEMPT, "")
    return attempt.isdecimal() and int(attempt) > settings().attempt


def _status_to_leave(run: Run, status: str, guest: bool) -> str:
    """How a run stands after this process, where that follows from how it stands now.

    torchrun ends rank 0 with SIGTERM when another rank has failed, which has then made the run FAILED. A guest leaves a
    run RUNNING that is still held, also where Lightning's logger has marked it FINISHED at the end of a fit.
    """
    now = str(run.info.status)
    if not guest:
        return "FAILED" if now == "FAILED" else status
    if TAG_HOLDER not in run.data.tags:
        return now
    return "FAILED" if status == "FAILED" else "RUNNING"


def fail_run_of(job_id: str, address: str, rank: int) -> None:
    """Let the job's run show that a rank has failed and why; the rank's own error matters more than what fails here."""
    from mlflow import MlflowClient

    with suppress(Exception):
        check(address)
        run = find_run(job_id, address)
        if run and not _is_of_a_later_attempt(run):
            client = MlflowClient(address)
            client.log_text(run.info.run_id, traceback.format_exc(), f"traceback-rank-{rank}.txt")
            client.set_terminated(run.info.run_id, "FAILED")
