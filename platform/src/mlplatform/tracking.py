"""One MLflow run a job: opened by its first attempt, rejoined by every later one."""

from __future__ import annotations

import atexit
import shlex
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from mlplatform.errors import AccessError, UnreachableError
from mlplatform.settings import Settings, settings

if TYPE_CHECKING:
    from mlflow import ActiveRun
    from mlflow.entities import Run

TAG_JOB = "mlplatform.job_id"
TAG_ATTEMPT = "mlplatform.attempt"
TAG_ROLE = "mlplatform.role"
"""`job` marks the parent run of a job; runs that user code starts carry the job's id without it."""

NOT_TRACKED = (
    "Nothing is tracked, because MLFLOW_TRACKING_URI is not set; start the stack with tracking "
    "(`make up` without ONLY=ray) or set it to your MLflow server."
)
_PROBE_SECONDS = 5
_PROBE = "/api/2.0/mlflow/experiments/search"
_SIGTERM_EXITS = (signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a Python process that got SIGTERM: Ray's handler exits with 15, ours as a shell would."""


@contextmanager
def job_run(
    *,
    experiment: str | None = None,
    name: str | None = None,
    params: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> Iterator[ActiveRun | None]:
    """Open the job's MLflow run, or rejoin it when an earlier attempt of the job has opened it.

    Inside, `mlflow.log_metric` and its siblings go to this run. It ends FINISHED, FAILED with the traceback as
    artifact `traceback.txt`, or KILLED on SIGTERM and Ctrl-C.

    Args:
        experiment: where a new run goes; None leaves it to MLFLOW_EXPERIMENT_NAME, or MLflow's default.
        name: of a new run; None takes the job's id.
        params: logged once, by the first attempt.
        tags: set in addition to the job's own.

    Yields:
        MLflow's own `ActiveRun`, or None where nothing is tracked (said in one sentence on stderr).

    Raises:
        UnreachableError: no MLflow answers within seconds.
        AccessError: MLflow refuses the credentials.
    """
    config = settings()
    address = uri()
    if address is None:
        _say_untracked()
        yield None
        return
    import mlflow

    check(address)
    with _exit_on_sigterm():
        run = _open(config, experiment, name or config.job_id, {**_job_tags(config), **(tags or {})})
        status = "FINISHED"
        try:
            _log_new_params(run, params or {})
            yield run
        except BaseException as error:
            status = _status_after(error)
            if status == "FAILED":
                with suppress(mlflow.MlflowException):
                    mlflow.log_text(traceback.format_exc(), "traceback.txt", run_id=run.info.run_id)
            raise
        finally:
            mlflow.end_run(status)


def process_run() -> str | None:
    """Id of the job's run, opened for the rest of this process where no `job_run` is open; None if untracked."""
    if uri() is not None:
        import mlflow

        if active := mlflow.active_run():
            return str(active.info.run_id)
    stack = ExitStack()
    run = stack.enter_context(job_run())
    previous_hook = sys.excepthook

    def end_failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        stack.__exit__(kind, error, trace)
        previous_hook(kind, error, trace)

    sys.excepthook = end_failed
    atexit.register(stack.close)
    return str(run.info.run_id) if run else None


def uri() -> str | None:
    """Address of MLflow: the one that the program has set, else the one of the settings; None if nothing is tracked."""
    mlflow = sys.modules.get("mlflow")
    if mlflow is not None and mlflow.is_tracking_uri_set():
        return str(mlflow.get_tracking_uri())
    return settings().tracking_uri


def find_run(job_id: str) -> Run | None:
    """The parent run of a job, in whatever experiment it is; None before the job has opened it."""
    import mlflow

    runs = mlflow.search_runs(
        search_all_experiments=True,
        filter_string=f"tags.`{TAG_JOB}` = '{job_id}' and tags.`{TAG_ROLE}` = 'job'",
        order_by=["attributes.start_time ASC"],
        max_results=1,
        output_format="list",
    )
    return runs[0] if runs else None


def run_url(run: Run) -> str:
    """The run's page in MLflow's web interface."""
    page = settings().tracking_page or uri()
    return f"{page}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"


def check(tracking_uri: str) -> None:
    """Ask MLflow one question, without the minutes of retries that its client allows itself.

    Raises:
        UnreachableError: nothing answers, or what answers is not MLflow.
        AccessError: the credentials are refused.
    """
    if not tracking_uri.startswith(("http://", "https://")):
        return
    import mlflow
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    start = f"MLflow at {tracking_uri} (MLFLOW_TRACKING_URI)"
    try:
        response = http_request(  # type: ignore[no-untyped-call]
            get_default_host_creds(tracking_uri),  # type: ignore[no-untyped-call]
            _PROBE,
            "GET",
            params={"max_results": 1},
            max_retries=0,
            timeout=_PROBE_SECONDS,
            raise_on_status=False,
        )
    except mlflow.MlflowException as error:
        raise UnreachableError(f"{start} does not answer; start it or correct the address.") from error
    if response.status_code in (401, 403):
        raise AccessError(
            f"{start} refuses the credentials ({response.status_code}); "
            "put your account into ~/.mlflow/credentials (`mlplatform env` says how)."
        )
    if response.status_code != 200:
        raise UnreachableError(f"{start} answers {response.status_code}; check that the address is MLflow's.")


@cache
def _say_untracked() -> None:
    """Once a process, also where both `job_run` and `run_config` find it out."""
    print(NOT_TRACKED, file=sys.stderr, flush=True)


def _open(config: Settings, experiment: str | None, name: str | None, tags: dict[str, str]) -> ActiveRun:
    import mlflow

    earlier = find_run(config.job_id) if config.job_id else None
    if earlier is None:
        if experiment:
            mlflow.set_experiment(experiment)
        return mlflow.start_run(run_name=name, tags=tags, log_system_metrics=True)
    # MLflow refuses to rejoin a run of another experiment than the one that is set.
    mlflow.set_experiment(experiment_id=earlier.info.experiment_id)
    return mlflow.start_run(run_id=earlier.info.run_id, tags=tags, log_system_metrics=True)


def _job_tags(config: Settings) -> dict[str, str]:
    tags = {
        TAG_JOB: config.job_id,
        TAG_ATTEMPT: str(config.attempt),
        TAG_ROLE: "job",
        "mlplatform.entrypoint": shlex.join(sys.orig_argv),
        "mlplatform.image": config.image,
        "mlplatform.node": socket.gethostname(),
        "mlflow.user": config.user,
        "mlflow.source.git.commit": config.git_commit,
    }
    return {tag: value for tag, value in tags.items() if value}


def _log_new_params(run: ActiveRun, params: Mapping[str, Any]) -> None:
    """MLflow refuses to change a parameter, so a later attempt logs only those that are not there yet."""
    import mlflow

    mlflow.log_params({key: value for key, value in params.items() if key not in run.data.params})


def _status_after(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "KILLED"
    if isinstance(error, SystemExit):
        if error.code in _SIGTERM_EXITS:
            return "KILLED"
        return "FINISHED" if error.code in (0, None) else "FAILED"
    return "FAILED"


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that the run is closed; only a main thread can."""
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
