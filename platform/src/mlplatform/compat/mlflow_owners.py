"""Rules on whose runs a job may change, as seen in mlflow 3.17.2; `mlflow_tokens` finds out who sends a request.

A run that is made with a token belongs to the token's owner, whatever name the client sends. A job changes only the
runs of its owner, and files only below these runs and the models that they logged. The rules are put around the
methods of MLflow's store, as those of `mlflow_stores`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mlplatform.compat.mlflow_audit import wrap

_CHANGES_OF_RUNS = (
    "update_run_info",
    "log_metric",
    "log_param",
    "log_batch",
    "log_inputs",
    "log_outputs",
    "set_tag",
    "delete_tag",
    "record_logged_model",
)

_CHANGES_OF_MODELS = ("finalize_logged_model", "set_logged_model_tags", "log_logged_model_params")

_USER = "mlflow.user"

_RUN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Owner:
    """Owner of a valid token.

    Attributes:
        name: name of the person.
        job: whether it is the token of an attempt.
    """

    name: str
    job: bool


_caller: ContextVar[Owner | None] = ContextVar("caller", default=None)


@contextmanager
def acting(owner: Owner | None) -> Iterator[None]:
    """Serve a request of an owner; None stands for an account of MLflow's own."""
    token = _caller.set(owner)
    try:
        yield
    finally:
        _caller.reset(token)


def guard_runs() -> None:
    """Put the rules on runs and logged models in force, in this process."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    wrap(SqlAlchemyStore, "create_run", _create_run)
    wrap(SqlAlchemyStore, "create_logged_model", _only_own("source_run_id", _owner_of_run))
    for name in _CHANGES_OF_RUNS:
        wrap(SqlAlchemyStore, name, _only_own("run_id", _owner_of_run))
    for name in _CHANGES_OF_MODELS:
        wrap(SqlAlchemyStore, name, _only_own("model_id", _owner_of_model))


def check_file(path: str) -> None:
    """Refuse to a job a file that is not below a run of its owner, a model that it logged, or a trace.

    Raises:
        MlflowException: the file is somebody else's.
    """
    caller = _caller.get()
    if caller is None or not caller.job:
        return
    parts = path.split("/")
    kind = parts[1] if len(parts) > 2 else ""
    if kind == "traces":
        return
    if kind == "models":
        owner = _owner_of_model(parts[2])
    else:
        owner = next((found for part in parts if _RUN.fullmatch(part) and (found := _owner_of_run(part))), None)
    if owner != caller.name:
        raise _refusal(f"The file {path!r}", owner, caller.name)


def _create_run(original: Callable[..., Any]) -> Callable[..., Any]:
    def create(self: Any, experiment_id: str, user_id: str, start_time: int, tags: Any, run_name: Any) -> Any:
        caller = _caller.get()
        if caller is not None:
            from mlflow.entities import RunTag

            user_id = caller.name
            tags = [*(tag for tag in tags or [] if tag.key != _USER), RunTag(_USER, user_id)]
        return original(self, experiment_id, user_id, start_time, tags, run_name)

    return create


def _only_own(
    argument: str, owner_of: Callable[[str], str | None]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what wraps a method so that a job changes only what is its owner's; what does not exist MLflow reports."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def change(*args: Any, **kwargs: Any) -> Any:
            caller = _caller.get()
            if caller is not None and caller.job:
                given = signature.bind(*args, **kwargs).arguments.get(argument)
                owner = owner_of(given) if given else None
                if owner not in (None, caller.name):
                    raise _refusal(f"{'Run' if argument != 'model_id' else 'Model'} {given}", owner, caller.name)
                _check_metrics(caller, signature.bind(*args, **kwargs).arguments)
            return original(*args, **kwargs)

        return change

    return make


def _check_metrics(caller: Owner, given: Mapping[str, Any]) -> None:
    """Refuse metrics of a run that are those of somebody else's logged model as well."""
    metrics = given.get("metrics") or [given.get("metric")]
    for model in {model for metric in metrics if (model := getattr(metric, "model_id", None))}:
        owner = _owner_of_model(model)
        if owner not in (None, caller.name):
            raise _refusal(f"Model {model}", owner, caller.name)


@lru_cache(maxsize=10_000)
def _known_owner_of_run(run_id: str) -> str:
    from mlflow.store.tracking.dbmodels.models import SqlRun

    with _tracking_store().ManagedSessionMaker(read_only=True) as session:
        row = session.query(SqlRun.user_id).filter(SqlRun.run_uuid == run_id).first()
    if row is None:
        raise KeyError(run_id)  # not remembered: it may be created later
    return row[0] or ""


def _owner_of_run(run_id: str) -> str | None:
    """Return who made a run, which never changes; None if there is none."""
    try:
        return _known_owner_of_run(run_id)
    except KeyError:
        return None


def _owner_of_model(model_id: str) -> str | None:
    """Return who made the run that logged a model; None if there is none."""
    from mlflow.store.tracking.dbmodels.models import SqlLoggedModel

    with _tracking_store().ManagedSessionMaker(read_only=True) as session:
        row = session.query(SqlLoggedModel.source_run_id).filter(SqlLoggedModel.model_id == model_id).first()
    return _owner_of_run(row[0]) if row and row[0] else None


def _tracking_store() -> Any:
    from mlflow.server import handlers

    return handlers._get_tracking_store()


def _refusal(what: str, owner: str | None, caller: str) -> Exception:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    whose = f"{owner}'s" if owner else f"not below one of {caller}'s runs"
    return MlflowException(f"{what} is {whose}; a job of {caller} changes only {caller}'s.", PERMISSION_DENIED)
