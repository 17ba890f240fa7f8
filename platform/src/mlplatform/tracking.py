"""One MLflow run a job: opened by its first attempt, rejoined by every later one."""

from __future__ import annotations

import atexit
import shlex
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mlplatform import exits, fence, gpus, hub_cache, ray_context, source
from mlplatform.errors import AccessError, UnreachableError
from mlplatform.metrics import name_among
from mlplatform.node_monitor import NodeMonitor
from mlplatform.settings import (
    OPEN_RUN,
    Settings,
    changed_environment,
    environment,
    launcher_ranks,
    open_run,
    settings,
)
from mlplatform.throwaway import throwaway_run, uri_outside

if TYPE_CHECKING:
    from mlflow import ActiveRun
    from mlflow.entities import Run

TAG_JOB = "mlplatform.job_id"
TAG_ATTEMPT = "mlplatform.attempt"
TAG_ROLE = "mlplatform.role"
"""`job` marks the parent run of a job; runs that user code starts carry the job's id without it."""

TAG_FIT = "mlplatform.fit"
"""The training that was tracked in a run which the script has opened by itself."""

TAG_NODE = "mlplatform.node"
TAG_HOLDER = "mlplatform.held_by"
"""While a run is open: whether a job's driver or one of Ray's workers has opened it."""

_DRIVER, _WORKER = "driver", "worker"

NOT_TRACKED = (
    "Nothing is tracked, because MLFLOW_TRACKING_URI is not set; start the stack with tracking "
    "(`make up` without ONLY=ray) or set it to your MLflow server."
)
_ACCOUNT = (
    *("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    *("MLFLOW_TRACKING_INSECURE_TLS", "MLFLOW_TRACKING_SERVER_CERT_PATH"),
)
_FILES_SECONDS = 60.0
_PROBE_SECONDS = 5
_PROBE = "/api/2.0/mlflow/experiments/search"


@contextmanager
def job_run(
    *,
    experiment: str | None = None,
    name: str | None = None,
    params: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> Iterator[ActiveRun | None]:
    """Open the job's MLflow run, or rejoin it when an earlier attempt or another process of the job has opened it.

    Inside, `mlflow.log_metric` and its siblings, autologging included, go to this run. It ends FINISHED, FAILED with
    the traceback as artifact `traceback.txt`, or KILLED on SIGTERM and Ctrl-C.

    Among ranks that train together (Ray Train, torchrun, Lightning's own DDP, SLURM) only rank 0 gets the job's run.
    The others get one in a temporary folder, where all that they log works and from which nothing is kept; one that
    fails makes the job's run FAILED, with artifact `traceback-rank-<rank>.txt`.

    A process that rejoins a run which the job's driver, or a parent of its own, still holds open does not end it: it
    leaves it RUNNING, or FAILED if it failed, and the one that holds it has the last word. Whoever else rejoins a run,
    as the next attempt and a restarted train worker do, ends it.

    Args:
        experiment: where a new run goes; None leaves it to MLFLOW_EXPERIMENT_NAME, or MLflow's default.
        name: of a new run; None takes the job's id.
        params: logged once, by the first attempt; what MLflow would refuse or cut is whole in artifact `params.json`.
        tags: set in addition to the job's own.

    Yields:
        MLflow's own `ActiveRun`, or None where nothing is tracked (said in one sentence on stderr).

    Raises:
        UnreachableError: no MLflow answers within seconds.
        AccessError: MLflow refuses the credentials.
        FencedError: a later attempt of this job was started; the run is that one's.
    """
    config = settings()
    address = uri()
    if address is None:
        _say_untracked()
        yield None
        return
    name = name or config.job_id
    with ExitStack() as stack:
        if active := _own_active_run(config):
            run = active
        elif rank := process_ranks()[0]:
            run = stack.enter_context(_other_rank(config, address, rank, experiment, name))
        else:
            fence.check()
            check(address)
            run = stack.enter_context(_first_rank(config, address, experiment, name, tags or {}))
        _log_new_params(run, params or {})
        yield run


def process_run(fit: str | None = None) -> str | None:
    """Id of the job's run, opened for the rest of this process where no `job_run` is open; None if untracked.

    Inside of a run that the script has opened by itself it is that one, or, in a later attempt of the job, the one that
    the same training has had before.

    Args:
        fit: name of the training that is to be tracked.
    """
    opened: AbstractContextManager[ActiveRun | Run | None] = job_run()
    if uri() is not None:
        import mlflow

        if active := mlflow.active_run():
            earlier = _earlier_run_of(active, fit) if fit else None
            if earlier is None:
                return str(active.info.run_id)
            opened = _continued(earlier)
    stack = ExitStack()
    run = stack.enter_context(opened)
    previous_hook, leaving = sys.excepthook, exits.NotedExit()

    def end_failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        stack.__exit__(kind, error, trace)
        previous_hook(kind, error, trace)

    def end() -> None:
        error = leaving.error
        stack.__exit__(type(error) if error else None, error, None)

    sys.excepthook = end_failed
    atexit.register(end)
    return str(run.info.run_id) if run else None


@contextmanager
def node_metrics(run_id: str | None = None) -> Iterator[None]:
    """Send this node's system metrics to a run while the block runs, as `system/<node>/gpu_0_utilization_percentage`.

    For training functions whose nodes are others than the one that opened the run, which sends its own without a name
    in between. Every rank may use it: one a node, that of local rank 0, sends. Nothing that goes wrong is raised.

    Args:
        run_id: None takes the job's run, as soon as there is one.
    """
    address = uri_outside() or uri()
    job_id = settings().job_id
    if address is None or process_ranks()[1] or not (run_id or job_id):
        yield
        return
    from mlflow import MlflowClient

    def find() -> Run | None:
        return MlflowClient(address).get_run(run_id) if run_id else find_run(str(job_id), address)

    node = socket.gethostname()
    monitor = NodeMonitor(find, address, node, but_on=node)
    monitor.start()
    try:
        yield
    finally:
        monitor.stop()


def process_ranks() -> tuple[int, int]:
    """Rank and local rank of this process among those that train together; 0 and 0 for a process alone."""
    return ray_context.train_ranks() or launcher_ranks()


def identity_tags(config: Settings) -> dict[str, str]:
    """What every run of a job carries, those that user code starts by itself included."""
    tags = {
        TAG_JOB: config.job_id,
        TAG_ATTEMPT: str(config.attempt),
        TAG_NODE: socket.gethostname(),
        "mlplatform.image": config.image,
        "mlflow.user": config.user,
        "mlflow.source.git.commit": config.git_commit,
    }
    return {tag: value for tag, value in tags.items() if value}


def uri() -> str | None:
    """Address of MLflow: the one that the program has set, else the one of the settings; None if nothing is tracked."""
    mlflow = sys.modules.get("mlflow")
    if mlflow is not None and mlflow.is_tracking_uri_set():
        return str(mlflow.get_tracking_uri())
    return settings().tracking_uri


def find_run(job_id: str, tracking_uri: str | None = None) -> Run | None:
    """The parent run of a job, in whatever experiment it is; None before the job has opened it.

    Should two attempts have opened one each at the same moment, it is the earlier one for everybody.

    Args:
        tracking_uri: None takes the server that the process uses.
    """
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri)
    pages = [client.search_experiments()]
    while pages[-1].token:
        pages.append(client.search_experiments(page_token=pages[-1].token))
    runs = client.search_runs(
        [experiment.experiment_id for page in pages for experiment in page],
        f"tags.`{TAG_JOB}` = '{job_id}' and tags.`{TAG_ROLE}` = 'job'",
        order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
        max_results=1,
    )
    return runs[0] if runs else None


def own_account() -> dict[str, str]:
    """The account at MLflow that this process has in its environment; Ray hands on what the job was submitted with."""
    variables = environment()
    return {variable: variables[variable] for variable in _ACCOUNT if variable in variables}


def run_url(run: Run) -> str:
    """The run's page in MLflow's web interface."""
    page = settings().tracking_page or uri()
    return f"{page}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"


def check(tracking_uri: str) -> None:
    """Ask MLflow one question, without the minutes of retries that its client allows itself.

    Raises:
        UnreachableError: nothing answers, or what answers is not MLflow.
        AccessError: the credentials are refused, or there are none for Databricks on this node.
    """
    if tracking_uri.partition(":")[0] == "databricks":
        _check_databricks(tracking_uri)
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


def _check_databricks(tracking_uri: str) -> None:
    """Whether this node knows an account; not whether Databricks takes it, as its client may try that for minutes."""
    variables = environment()
    file = Path(variables.get("DATABRICKS_CONFIG_FILE") or "~/.databrickscfg").expanduser()
    if not variables.get("DATABRICKS_HOST") and not file.is_file():
        raise AccessError(
            f"MLflow is to be {tracking_uri} (MLFLOW_TRACKING_URI), but {socket.gethostname()} has no {file}. Copy the "
            f"file that `databricks configure` writes to {settings().shared_folder}, which every node sees, and submit "
            "the job with DATABRICKS_CONFIG_FILE naming it there; or with DATABRICKS_HOST and DATABRICKS_TOKEN."
        )


@cache
def _say_untracked() -> None:
    """Once a process, also where both `job_run` and `run_config` find it out."""
    print(NOT_TRACKED, file=sys.stderr, flush=True)


@contextmanager
def _first_rank(
    config: Settings, address: str, experiment: str | None, name: str | None, tags: Mapping[str, str]
) -> Iterator[ActiveRun]:
    """The job's own run, and how it ends."""
    with exits.exit_on_sigterm():
        run, guest = _open(config, experiment, name, tags)
        run_id = run.info.run_id
        with ExitStack() as stack:
            if guest:
                stack.enter_context(node_metrics(run_id))
            else:
                stack.enter_context(changed_environment({OPEN_RUN: run_id}))
                stack.enter_context(_description(config, run, address))
            status = "FINISHED"
            try:
                yield run
            except BaseException as error:
                status = exits.status_after(error)
                if status == "FAILED" and (advice := hub_cache.advice_for(error)):
                    print(advice, file=sys.stderr, flush=True)
                raise
            finally:
                # First of all: a stopped job has 3 s before Ray kills it.
                _end(address, run_id, status, guest)


@contextmanager
def _other_rank(
    config: Settings, address: str, rank: int, experiment: str | None, name: str | None
) -> Iterator[ActiveRun]:
    """A run that is not kept; what is kept of this rank is its node's system metrics, and why it failed."""
    with exits.exit_on_sigterm(), node_metrics(), throwaway_run(experiment, name) as run:
        try:
            yield run
        except BaseException as error:
            if config.job_id and exits.status_after(error) == "FAILED":
                _fail_run_of(config.job_id, address, rank)
            raise


def _open(
    config: Settings, experiment: str | None, name: str | None, tags: Mapping[str, str]
) -> tuple[ActiveRun, bool]:
    """Open or rejoin the run; whether it is a guest there, because another process holds it open."""
    import mlflow

    earlier = find_run(config.job_id) if config.job_id else None
    if earlier is None:
        if experiment:
            mlflow.set_experiment(experiment)
        noted = {"mlflow.note.content": config.note} if config.note else {}
        run = mlflow.start_run(run_name=name, tags={**_job_tags(config), **noted, **tags}, log_system_metrics=False)
        earlier = find_run(config.job_id) if config.job_id else None
        if earlier is None or earlier.info.run_id == run.info.run_id:
            return run, False
        # Another attempt of the job has opened its run at the same moment, and was the earlier one.
        mlflow.end_run("KILLED")
        mlflow.MlflowClient().delete_run(run.info.run_id)
    guest = _is_guest(earlier)
    # MLflow refuses to rejoin a run of another experiment than the one that is set.
    mlflow.set_experiment(experiment_id=earlier.info.experiment_id)
    job_tags = {} if guest else _job_tags(config)
    return mlflow.start_run(run_id=earlier.info.run_id, tags={**job_tags, **tags}, log_system_metrics=False), guest


def _is_guest(run: Run) -> bool:
    """Whether the run is open in a process that outlives this one: its parent, or the driver of its Ray job.

    A driver always takes the run over, for the one that held it has then died; so does a train worker from a train
    worker. A driver that dies takes its workers with it, so they cannot find what a dead one has left.
    """
    if open_run() == run.info.run_id:
        return True
    return ray_context.is_worker() and run.data.tags.get(TAG_HOLDER) == _DRIVER


def _own_active_run(config: Settings) -> ActiveRun | None:
    """The run that a `job_run` around this one has opened in this thread, the job's or a throwaway one."""
    import mlflow

    active = mlflow.active_run()
    if active is None or uri_outside():
        return active
    if config.job_id is None:
        return None
    tags = active.data.tags
    return active if tags.get(TAG_JOB) == config.job_id and tags.get(TAG_ROLE) == "job" else None


def _earlier_run_of(active: ActiveRun, fit: str) -> Run | None:
    """The run that an earlier attempt of the job had open around a training, whose points are to stay together."""
    import mlflow

    config = settings()
    if config.job_id is None or "'" in fit or _own_active_run(config):
        return None
    client = mlflow.MlflowClient()
    if config.attempt > 1:
        same = f"tags.`{TAG_JOB}` = '{config.job_id}' and tags.`{TAG_FIT}` = '{fit}'"
        order = ["attributes.start_time ASC"]
        if found := client.search_runs([active.info.experiment_id], same, order_by=order, max_results=1):
            return found[0]
    client.set_tag(active.info.run_id, TAG_FIT, fit)
    return None


@contextmanager
def _continued(run: Run) -> Iterator[Run]:
    """An earlier attempt's run, open again until this one ends."""
    import mlflow

    client, run_id, status = mlflow.MlflowClient(), run.info.run_id, "FINISHED"
    client.set_tag(run_id, TAG_ATTEMPT, str(settings().attempt))
    client.update_run(run_id, status="RUNNING")
    try:
        yield run
    except BaseException as error:
        status = exits.status_after(error)
        raise
    finally:
        with suppress(Exception):
            client.set_terminated(run_id, status)


def _job_tags(config: Settings) -> dict[str, str]:
    # A worker's own command line is Ray's, and names nothing that a person has typed.
    command = config.entrypoint or ("" if ray_context.is_worker() else shlex.join(sys.orig_argv))
    tags = {
        **identity_tags(config),
        TAG_ROLE: "job",
        TAG_HOLDER: _WORKER if ray_context.is_worker() else _DRIVER,
        "mlplatform.entrypoint": command,
    }
    return {tag: value for tag, value in tags.items() if value}


def _log_new_params(run: ActiveRun, params: Mapping[str, Any]) -> None:
    """Log what the run does not have yet: MLflow refuses to change a parameter, so that a later attempt would fail."""
    import mlflow
    from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH

    if not params:
        return
    # Asked for anew: a run that is open already knows no parameter that was logged since.
    logged = mlflow.get_run(run.info.run_id).data.params
    accepted: dict[str, str] = {}
    names: dict[str, str] = {}
    odd = []
    for key, value in params.items():
        text, valid = str(value), name_among(key, names)
        if valid in logged:
            continue
        if valid != key:
            odd.append(f"Parameter {key!r} is logged as {valid!r}, because MLflow refuses its name or has it already.")
        if len(text) > MAX_PARAM_VAL_LENGTH:
            odd.append(
                f"Parameter {key!r} has {len(text)} characters, of which MLflow takes {MAX_PARAM_VAL_LENGTH}; "
                "it is whole in the artifact params.json."
            )
        accepted[valid] = text[:MAX_PARAM_VAL_LENGTH]
    if accepted:
        mlflow.log_params(accepted)
    # Rank 0 says it for all.
    if odd and not uri_outside():
        print("\n".join(odd), file=sys.stderr, flush=True)
        mlflow.log_dict({key: str(value) for key, value in params.items()}, "params.json")


@contextmanager
def _description(config: Settings, run: ActiveRun, address: str) -> Iterator[None]:
    """What the opener adds to the run on the side: `gpu-info.txt`, `git.diff`, its node's system metrics."""
    writer = threading.Thread(target=_write_files, args=(config, run.info.run_id, address), daemon=True)
    monitor = NodeMonitor(lambda: run, address, None)
    writer.start()
    monitor.start()
    try:
        yield
    finally:
        monitor.stop()
        writer.join(_FILES_SECONDS)


def _write_files(config: Settings, run_id: str, address: str) -> None:
    from mlflow import MlflowClient

    try:
        client = MlflowClient(address)
        if config.git_diff:
            client.log_text(run_id, source.unpack(config.git_diff), "git.diff")
        client.log_text(run_id, gpus.describe(), "gpu-info.txt")
    except Exception as error:
        print(f"The run lacks gpu-info.txt, MLflow did not take it: {error}", file=sys.stderr, flush=True)


def _end(address: str, run_id: str, status: str, guest: bool) -> None:
    """End the run, or leave it if it is another's; an MLflow that is away does not hide what ended the job."""
    import mlflow

    client = mlflow.MlflowClient(address)
    try:
        run = client.get_run(run_id)
        if _is_of_a_later_attempt(run):
            _leave_all()
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


def _leave_all() -> None:
    """Forget the runs that this process holds open, as MLflow itself would end them when the process exits."""
    from mlflow.tracking.fluent import _active_run_stack

    for runs in _active_run_stack.get_all_thread_values().values():
        runs.clear()


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


def _fail_run_of(job_id: str, address: str, rank: int) -> None:
    """Let the job's run show that a rank has failed and why; the rank's own error matters more than what fails here."""
    from mlflow import MlflowClient

    with suppress(Exception):
        check(address)
        run = find_run(job_id, address)
        if run and not _is_of_a_later_attempt(run):
            client = MlflowClient(address)
            client.log_text(run.info.run_id, traceback.format_exc(), f"traceback-rank-{rank}.txt")
            client.set_terminated(run.info.run_id, "FAILED")
