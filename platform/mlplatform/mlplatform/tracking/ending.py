"""The end of a job's run: its status according to how the process ends, its traceback, and who may set them."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from mlplatform.compat import mlflow as mlflow_compat
from mlplatform.compat import ray_core
from mlplatform.contract import TAG_ATTEMPT, TAG_HOLDER
from mlplatform.settings.job import settings
from mlplatform.tracking.server import check, find_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


_SIGTERM_EXITS = (signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a Python process after SIGTERM: Ray's handler exits with 15, ours with a shell's code."""


def status_after(error: BaseException) -> str:
    """Return the status of a run whose process is ended by `error`."""
    if isinstance(error, KeyboardInterrupt):
        return "KILLED"
    if isinstance(error, SystemExit):
        if error.code in _SIGTERM_EXITS or ray_core.is_exit_from_signal_handler(error):
            return "KILLED"
        return "FINISHED" if error.code in (0, None) else "FAILED"
    return "FAILED"


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that the run is closed; do nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class ExitRecorder:
    """Replacement for `sys.exit` that records the exit status, which `atexit` handlers cannot see otherwise.

    It stays in place until the process ends. `sys.excepthook` sees every other exception, but not SystemExit.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        """SystemExit or KeyboardInterrupt that ends the process; None before `sys.exit` is called."""
        self._exit = sys.exit
        sys.exit = self  # type: ignore[assignment]

    def __call__(self, code: object = None) -> None:
        if threading.current_thread() is threading.main_thread():
            handlers = (signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))
            caller = sys._getframe(1).f_code
            by_signal = any(getattr(handler, "__code__", None) is caller for handler in handlers)
            # Ray Train's Ctrl-C handler exits with code 0.
            self.error = KeyboardInterrupt() if by_signal else SystemExit(code)
        self._exit(code)  # type: ignore[arg-type]


def end_run(address: str, run_id: str, status: str, guest: bool) -> None:
    """End the run, or leave it to its holder; errors of MLflow are printed, so that they do not hide the job's own.

    Args:
        address: MLflow of the run.
        run_id: run to end.
        status: FINISHED, FAILED or KILLED, depending on how this process ends.
        guest: another process holds the run open.
    """
    import mlflow

    client = mlflow.MlflowClient(address)
    try:
        run = client.get_run(run_id)
        if _is_of_a_later_attempt(run):
            mlflow_compat.forget_active_runs()
            return
        if status == "FAILED":
            _keep_traceback(client, run_id)
        if guest or status == "KILLED":
            status = _status_to_leave(run, status, guest)
        # Runs that user code has left open inside it end too.
        while (active := mlflow.active_run()) and active.info.run_id != run_id:
            mlflow.end_run(status)
        if mlflow.active_run():
            mlflow.end_run(status)
        else:
            client.set_terminated(run_id, status)
        if not guest:
            client.delete_tag(run_id, TAG_HOLDER)
    except Exception as error:
        _print_not_ended(run_id, status, error)


def _keep_traceback(client: MlflowClient, run_id: str) -> None:
    try:
        client.log_text(run_id, traceback.format_exc(), "traceback.txt")
    except Exception as error:
        print(f"MLflow did not accept traceback.txt of run {run_id}: {error}", file=sys.stderr, flush=True)


def end_quietly(client: MlflowClient, run_id: str, status: str) -> None:
    """End a run; errors of MLflow are printed, so that they do not hide the error that ends the process."""
    try:
        client.set_terminated(run_id, status)
    except Exception as error:
        _print_not_ended(run_id, status, error)


def _print_not_ended(run_id: str, status: str, error: Exception) -> None:
    print(f"MLflow did not accept the end of run {run_id}, {status}: {error}", file=sys.stderr, flush=True)


def _is_of_a_later_attempt(run: Run) -> bool:
    """Return whether a later attempt has taken over the run, judging by its tags only: the storage could take too long.

    A replaced attempt may still end the run until its successor rejoins it, because rejoining reopens it.
    """
    attempt = run.data.tags.get(TAG_ATTEMPT, "")
    return attempt.isdecimal() and int(attempt) > settings().attempt


def _status_to_leave(run: Run, status: str, guest: bool) -> str:
    """Return the status to leave the run in, if that depends on the run's current status.

    torchrun ends rank 0 with SIGTERM after another rank has failed, and that rank has set the run to FAILED. A guest
    leaves a held run RUNNING, even if Lightning's logger has marked it FINISHED at the end of a fit.
    """
    now = str(run.info.status)
    if not guest:
        return "FAILED" if now == "FAILED" else status
    if TAG_HOLDER not in run.data.tags:
        return now
    return "FAILED" if status == "FAILED" else "RUNNING"


def fail_run_of(job_id: str, address: str, rank: int) -> None:
    """Set the job's run to FAILED with a rank's traceback; errors of MLflow are only printed."""
    from mlflow import MlflowClient

    try:
        check(address)
        run = find_run(job_id, address)
        if run and not _is_of_a_later_attempt(run):
            client = MlflowClient(address)
            client.log_text(run.info.run_id, traceback.format_exc(), f"traceback-rank-{rank}.txt")
            client.set_terminated(run.info.run_id, "FAILED")
    except Exception as error:
        print(f"MLflow did not accept the failure of rank {rank} of job {job_id}: {error}", file=sys.stderr, flush=True)
