"""Private names of MLflow's client, as seen in mlflow 3.17.2, each with the reason why no public name will do.

MLflow is imported inside functions only: it takes 4 s of CPU time. `tests/embedded/compat/test_compat_mlflow.py`
asserts every name and signature used here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mlplatform.compat.patches import AfterImport, around

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param, Run, RunTag
    from mlflow.store.artifact.artifact_repo import ArtifactRepository


def forget_active_runs() -> None:
    """Make MLflow forget the runs that this process holds open, in all threads, without ending them.

    `mlflow.tracking.fluent._active_run_stack`: MLflow's own `atexit` handler ends every run of the stack, and
    `mlflow.end_run` cannot leave one RUNNING.
    """
    from mlflow.tracking.fluent import _active_run_stack

    for runs in _active_run_stack.get_all_thread_values().values():
        runs.clear()


@contextmanager
def restored_addresses() -> Iterator[None]:
    """Restore tracking server, model registry and active experiment at the end, whatever was set meanwhile.

    `mlflow.tracking.fluent._active_experiment_id` and `mlflow.tracking._model_registry.utils._registry_uri`: MLflow can
    unset neither, `get_registry_uri` does not distinguish a registry that was set from one derived from the tracking
    server, and setting an experiment would request it from its server.
    """
    import mlflow
    from mlflow.tracking import fluent
    from mlflow.tracking._model_registry import utils

    tracking, registry, experiment_id = mlflow.get_tracking_uri(), utils._registry_uri, fluent._active_experiment_id
    try:
        yield
    finally:
        mlflow.set_tracking_uri(tracking)
        mlflow.set_registry_uri(registry)  # type: ignore[arg-type]
        fluent._active_experiment_id = experiment_id


def latest_metrics(run: Run) -> list[Metric]:
    """Return the latest point of each metric of a run, with its step.

    `RunData._metric_objs`: the public `RunData.metrics` has values without steps, and one request per metric for its
    history takes minutes for a long run.
    """
    return list(run.data._metric_objs)


def download_file(files: ArtifactRepository, path: str, local: Path) -> None:
    """Download one file of an artifact repository.

    `ArtifactRepository._download_file`, which every repository implements: the public `download_artifacts` around it
    requests a listing per file and draws a progress bar for each.
    """
    files._download_file(path, str(local))  # type: ignore[no-untyped-call]


@functools.cache
def print_pages(page_of: Callable[[str], str | None]) -> None:
    """Let the lines "View run ... at" and "View experiment at" name an address that a browser can reach.

    `TrackingServiceClient._log_url` and `get_workspace_url` of `mlflow.tracking._tracking_service.client`: MLflow
    prints the address that the program itself uses, and no setting changes that. Only Databricks' workspace, which it
    asks for first, takes the place of that address.

    Args:
        page_of: returns a server's address for browsers; None leaves the lines as MLflow prints them.
    """
    from mlflow.tracking._tracking_service import client

    page: ContextVar[str | None] = ContextVar("page", default=None)
    around(client, "get_workspace_url")(lambda workspace_url: page.get() or workspace_url())

    @around(client.TrackingServiceClient, "_log_url")
    def log_page(log_url: Any, self: Any, run_id: str) -> None:
        token = page.set(page_of(self.tracking_uri))
        try:
            log_url(self, run_id)
        finally:
            page.reset(token)


@functools.cache
def watch_new_runs(created: Callable[[str, Run], None]) -> None:
    """Call a function with each run that this process creates, and its server's address.

    `create_run` of `mlflow.store.tracking.rest_store.RestStore`, which the fluent API, `MlflowClient` and other
    libraries' loggers end in: context providers are called before a run has an id.
    """
    from mlflow.store.tracking.rest_store import RestStore

    @around(RestStore, "create_run")
    def create_run(create: Any, self: Any, *args: Any, **options: Any) -> Run:
        run: Run = create(self, *args, **options)
        created(self.get_host_creds().host, run)
        return run


def pickle_models_by_default() -> None:
    """Make `mlflow.pytorch.log_model(model, name)` work as it did up to MLflow 3.13, once that module is imported.

    Importing `mlflow.pytorch` here would load torch into every process that uses MLflow.
    """
    AfterImport({"mlflow.pytorch": set_pickle_default})


def set_pickle_default(pytorch: ModuleType) -> None:
    """Make "pickle" the format in which `mlflow.pytorch` writes a model when neither format nor example is given.

    MLflow 3.14 and later write "pt2" by default, and raise if no `input_example` shows what to trace. A caller who
    names a format or gives an example gets MLflow's own behavior.
    """
    for name in ("log_model", "save_model"):

        @around(pytorch, name)
        def pickling(function: Any, *args: Any, **options: Any) -> Any:
            call = inspect.signature(function).bind(*args, **options)
            given = (call.arguments.get(name) for name in ("serialization_format", "input_example"))
            if not call.arguments.get("export_model") and all(value is None for value in given):
                call.arguments["serialization_format"] = "pickle"
            return function(*call.args, **call.kwargs)


@functools.cache
def keep_changed_params(
    keep: Callable[[str, Sequence[Param], Mapping[str, str]], Mapping[str, RunTag]],
    logged: Callable[[str, Sequence[Param]], None],
) -> None:
    """Let every way to log parameters turn those into tags that MLflow refuses to change.

    `log_param` and `log_batch` of `mlflow.store.tracking.rest_store.RestStore`, which the fluent API, `MlflowClient`,
    autologging and other libraries' loggers end in. The refusal has no code of its own, only this text.

    Args:
        keep: gets run, parameters, and the run's own; returns name -> tag of the changed ones, none if they may not.
        logged: gets run and parameters that MLflow has accepted.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.store.tracking.rest_store import RestStore

    @around(RestStore, "log_batch")
    def log_batch(log: Any, self: Any, run_id: str, metrics: Any, params: Sequence[Param], tags: Any) -> None:
        try:
            log(self, run_id, metrics, params, tags)
        except MlflowException as error:
            if "Changing param values is not allowed" not in str(error):
                raise
            kept = keep(run_id, params, self.get_run(run_id).data.params)
            if not kept:
                raise
            log(self, run_id, [], [], list(kept.values()))
            # All of the rest: MLflow stores a batch or nothing.
            params = [param for param in params if param.key not in kept]
            log(self, run_id, metrics, params, tags)
        logged(run_id, params)

    around(RestStore, "log_param")(lambda _, self, run_id, param: self.log_batch(run_id, [], [param], []))
