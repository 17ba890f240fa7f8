"""One MLflow run per job: opened by its first attempt, rejoined by every later one."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mlplatform import contract
from mlplatform.compat import ray_core
from mlplatform.contract import TAG_ATTEMPT, TAG_END_REASON, TAG_HOLDER, TAG_JOB, TAG_ROLE, fit_tag
from mlplatform.errors import FencedError
from mlplatform.settings.environment import OPEN_RUN, changed_environment, open_run
from mlplatform.settings.job import Settings, settings
from mlplatform.storage import fence, run_reference
from mlplatform.storage.run_reference import RunReference
from mlplatform.text import advice as advice_module
from mlplatform.tracking import ending, reported_runs
from mlplatform.tracking.identity import DRIVER, job_tags, process_ranks
from mlplatform.tracking.params import MAX_CHARACTERS, changed_tags, new_params, notice
from mlplatform.tracking.scratch_run import scratch_run, uri_outside
from mlplatform.tracking.server import check, existing_run, find_run, report_untracked, uri
from mlplatform.tracking.system_metrics import NodeMonitor, gpu_report, node_metrics

if TYPE_CHECKING:
    from mlflow import ActiveRun
    from mlflow.entities import Run


_FILES_SECONDS = 60.0


@contextmanager
def job_run(
    *,
    experiment: str | None = None,
    name: str | None = None,
    params: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> Iterator[ActiveRun | None]:
    """Open the job's MLflow run, or rejoin it if an earlier attempt or another process of the job has opened it.

    Inside, `mlflow.log_metric` and the rest of MLflow's fluent API, autologging included, write to this run. It ends
    FINISHED, FAILED with the traceback as artifact `traceback.txt`, or KILLED on SIGTERM and Ctrl-C.

    Among ranks that train together (Ray Train, torchrun, Lightning's own DDP, SLURM) only rank 0 gets the job's run.
    The others get one in a temporary folder, where every logging call works and from which nothing is kept. If one
    of them fails, the job's run is FAILED, with artifact `traceback-rank-<rank>.txt`.

    A process does not end a run that the job's driver, or a parent process, still holds open: it leaves the run
    RUNNING, or FAILED if the process failed, and the holder decides how it ends. Any other process that rejoins a run
    ends it, such as the next attempt or a restarted train worker.

    Args:
        experiment: experiment of a new run; None means MLFLOW_EXPERIMENT_NAME, or else MLflow's default.
        name: name of a new run; None means the job's id.
        params: logged by the first attempt; another value of a later one becomes a tag, with a sentence on stderr. If
            MLflow would reject or cut any, artifact `params.json` has all.
        tags: set in addition to the job's own.

    Yields:
        MLflow's own `ActiveRun`, or None if nothing is tracked (reported in one sentence on stderr).

    Raises:
        UnreachableError: MLflow accepts no connection within 5 s, or does not answer within 60 s.
        AccessError: MLflow rejected the account.
        FencedError: a later attempt of this job was started, and the run is now that attempt's.
    """
    config = settings()
    address = uri()
    if address is None:
        report_untracked()
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
    """Return the id of the job's run, opened for the rest of this process unless `job_run` is open; None if untracked.

    Inside a run that the script has opened itself, return that run's id, or, in a later attempt of the job, the id of
    the run that the same training had before.

    Replaces `sys.excepthook` and `sys.exit` until the process ends, to record how it ends.

    Args:
        fit: name of the training to track.
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
    previous_hook, leaving = sys.excepthook, ending.ExitRecorder()

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
def _first_rank(
    config: Settings, address: str, experiment: str | None, name: str | None, tags: Mapping[str, str]
) -> Iterator[ActiveRun]:
    """Open the job's own run, and end it with the status that corresponds to how the block ends."""
    with ending.exit_on_sigterm():
        run, guest = _open(config, address, experiment, name, tags)
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
                status = ending.status_after(error)
                if status == "FAILED" and (advice := advice_module.advice_for(error)):
                    print(advice, file=sys.stderr, flush=True)
                raise
            finally:
                # Before anything else: a stopped job has 3 s until Ray kills it.
                ending.end_run(address, run_id, status, guest)


@contextmanager
def _other_rank(
    config: Settings, address: str, rank: int, experiment: str | None, name: str | None
) -> Iterator[ActiveRun]:
    """Open a scratch run; from this rank, the job's run gets only its node's system metrics and its traceback."""
    with ending.exit_on_sigterm(), node_metrics(), scratch_run(experiment, name) as run:
        try:
            yield run
        except BaseException as error:
            if config.job_id and ending.status_after(error) == "FAILED":
                ending.fail_run_of(config.job_id, address, rank)
            raise


def _open(
    config: Settings, address: str, experiment: str | None, name: str | None, tags: Mapping[str, str]
) -> tuple[ActiveRun, bool]:
    """Open or rejoin the run; return it, and True if this process is a guest because another holds the run open."""
    import mlflow

    earlier = _opened(config, address)
    if earlier is None:
        if experiment:
            mlflow.set_experiment(experiment)
        noted = {"mlflow.note.content": config.note} if config.note else {}
        run = mlflow.start_run(run_name=name, tags={**job_tags(config), **noted, **tags}, log_system_metrics=False)
        earlier = _opened_meanwhile(config, run)
        if earlier is None:
            _report(address, run.info.run_id, own=True)
            return run, False
        mlflow.end_run("KILLED")
        mlflow.MlflowClient().delete_run(run.info.run_id)
    _report(address, earlier.info.run_id, own=True)
    guest = _is_guest(earlier)
    # MLflow rejoins a run only if its experiment is the active one.
    mlflow.set_experiment(experiment_id=earlier.info.experiment_id)
    own_tags = {} if guest else job_tags(config)
    _forget_end(earlier)
    return mlflow.start_run(run_id=earlier.info.run_id, tags={**own_tags, **tags}, log_system_metrics=False), guest


def _opened(config: Settings, address: str) -> Run | None:
    """Return the run that a process of the job has opened.

    The first attempt trusts a missing reference, which is stored right after a run was opened. Processes that open
    one at the same moment notice it in `_opened_meanwhile`, if they choose the same experiment.
    """
    if config.job_id is None:
        return None
    if fence.applies():
        with suppress(OSError, ValueError):
            reference = run_reference.read(config.job_id)
            if reference is None and config.attempt == 1:
                return None
            if reference and reference.tracking_uri == address and (run := existing_run(reference.run_id)):
                return run
    return find_run(config.job_id)


def _opened_meanwhile(config: Settings, run: ActiveRun) -> Run | None:
    """Return the run that another process of the job opened while this one opened `run`; None if this run counts.

    Every process of a job chooses its experiment by the same code, so only this one is searched: MLflow takes 30 to
    100 ms per request, and longer for many experiments.
    """
    if config.job_id is None:
        return None
    earlier = find_run(config.job_id, experiments=[run.info.experiment_id])
    return earlier if earlier and earlier.info.run_id != run.info.run_id else None


def _is_guest(run: Run) -> bool:
    """Return whether a process that outlives this one holds the run open: its parent, or the driver of its Ray job.

    A driver always takes over the run, because its earlier holder has died; so does a train worker from a train
    worker. The workers of a driver die with it, so they never find a run left by a dead driver.
    """
    if open_run() == run.info.run_id:
        return True
    return ray_core.is_worker() and run.data.tags.get(TAG_HOLDER) == DRIVER


def _own_active_run(config: Settings) -> ActiveRun | None:
    """Return the run that an enclosing `job_run` has opened in this thread: the job's, or a scratch run."""
    import mlflow

    active = mlflow.active_run()
    if active is None or uri_outside():
        return active
    if config.job_id is None:
        return None
    tags = active.data.tags
    return active if tags.get(TAG_JOB) == config.job_id and tags.get(TAG_ROLE) == "job" else None


def _earlier_run_of(active: ActiveRun, fit: str) -> Run | None:
    """Return the run in which an earlier attempt of the job tracked a training, so that its points stay in one run."""
    import mlflow

    config = settings()
    if config.job_id is None or "'" in fit or _own_active_run(config):
        return None
    client = mlflow.MlflowClient()
    if config.attempt > 1:
        same = f"tags.`{TAG_JOB}` = '{config.job_id}' and tags.`{fit_tag(fit)}` = '{fit}'"
        order = ["attributes.start_time ASC"]
        if found := client.search_runs([active.info.experiment_id], same, order_by=order, max_results=1):
            return found[0]
    client.set_tag(active.info.run_id, fit_tag(fit), fit)
    return None


@contextmanager
def _continued(run: Run) -> Iterator[Run]:
    """Reopen an earlier attempt's run until this attempt ends."""
    import mlflow

    client, run_id, status = mlflow.MlflowClient(), run.info.run_id, "FINISHED"
    _report(uri() or "", run_id)
    client.set_tag(run_id, TAG_ATTEMPT, str(settings().attempt))
    client.update_run(run_id, status="RUNNING")
    _forget_end(run)
    try:
        yield run
    except BaseException as error:
        status = ending.status_after(error)
        raise
    finally:
        ending.end_quietly(client, run_id, status)


def _report(address: str, run_id: str, *, own: bool = False) -> None:
    if settings().is_own(address):
        reported_runs.report(run_id, own)


def _forget_end(run: Run) -> None:
    """Remove the tag with the reason for which the gateway has ended a run: its job was resumed."""
    import mlflow

    if TAG_END_REASON in run.data.tags:
        mlflow.MlflowClient().delete_tag(run.info.run_id, TAG_END_REASON)


def _log_new_params(run: ActiveRun, params: Mapping[str, Any]) -> None:
    """Log the parameters that the run does not have yet; in `params.json` too if any is renamed or cut."""
    import mlflow

    if not params:
        return
    # Read again: the object of an open run lacks parameters that were logged since.
    new = new_params(params, mlflow.get_run(run.info.run_id).data.params)
    if new.values:
        mlflow.log_params(new.values)
    if new.changed:
        mlflow.set_tags(changed_tags(new.changed))
        print(notice(new.changed), file=sys.stderr, flush=True)
    notes = [
        f"Parameter {key!r} is logged as {name!r}: MLflow rejects its name or has it already."
        for key, name in new.renamed.items()
    ]
    notes += [
        f"Parameter {key!r} has {length} characters, of which MLflow stores {MAX_CHARACTERS}; the full value is in the "
        "artifact params.json."
        for key, length in new.cut.items()
    ]
    # Rank 0 prints it for all.
    if notes and not uri_outside():
        print("\n".join(notes), file=sys.stderr, flush=True)
        mlflow.log_dict({key: str(value) for key, value in params.items()}, "params.json")


@contextmanager
def _description(config: Settings, run: ActiveRun, address: str) -> Iterator[None]:
    """Add a reference, `gpu-info.txt`, `git.diff` and this node's system metrics to the run, from two threads."""
    writer = threading.Thread(target=_write_files, args=(config, run.info.run_id, address), daemon=True)
    writer.start()
    try:
        with NodeMonitor(lambda: run, address, None).running():
            yield
    finally:
        writer.join(_FILES_SECONDS)


def _write_files(config: Settings, run_id: str, address: str) -> None:
    from mlflow import MlflowClient

    if config.job_id and fence.applies():
        # Without it, the next attempt searches all experiments.
        with suppress(OSError, FencedError):
            run_reference.write(config.job_id, RunReference(address, run_id))
    try:
        client = MlflowClient(address)
        if config.git_diff:
            client.log_text(run_id, contract.unpack(config.git_diff), "git.diff")
        client.log_text(run_id, gpu_report(), "gpu-info.txt")
    except Exception as error:
        print(f"MLflow did not accept git.diff or gpu-info.txt of the run: {error}", file=sys.stderr, flush=True)
