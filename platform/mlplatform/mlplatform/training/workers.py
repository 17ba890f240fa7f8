"""Set-up of each of Ray Train's workers by `run_config`, before the training function starts."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ray.train import Checkpoint, CheckpointUploadMode

from mlplatform.compat.ray_train import (
    WorkerCallback,
    around_reports_without_effect,
    preemption_setter,
    stored_checkpoint,
    wrap_report,
)
from mlplatform.errors import JobError
from mlplatform.settings.environment import set_environment
from mlplatform.storage import upload as storage_upload
from mlplatform.training import leaving

_log = logging.getLogger(__name__)


class WorkerSetup(WorkerCallback):  # type: ignore[misc]
    """Callback that prepares workers: metrics as Python values, parallel uploads, warnings for calls without effect."""

    def __init__(self, checkpoints: str, account: Mapping[str, str] = MappingProxyType({})) -> None:
        """Set up the callback in the driver; Ray sends it to the workers as a pickle.

        Args:
            checkpoints: address of the training run's folder.
            account: the driver's account at MLflow, as variables.
        """
        self._checkpoints = checkpoints
        self._account = dict(account)

    def after_init_train_context(self) -> None:
        set_environment(self._account)
        upload = None
        if self._checkpoints.startswith("s3://"):
            upload = _uploader(self._checkpoints)
            threading.Thread(target=storage_upload.prepare, name="storage", daemon=True).start()
        leaving.announce(preemption_setter())
        wrap_report(functools.partial(_reporting, upload=upload))
        around_reports_without_effect(_warn_and_report, _refuse_report)


def plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics as Python values: Ray Train writes them as JSON, which has no NumPy numbers or tensors."""
    return {key: _plain(value) for key, value in metrics.items()}


def _plain(value: Any) -> Any:
    """Return the value as a Python value; the same object if no change is needed."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        changed = plain(value)
        return value if all(changed[key] is value[key] for key in value) else changed
    if type(value) in (list, tuple):
        items = [_plain(item) for item in value]
        return value if all(item is old for item, old in zip(items, value, strict=True)) else items
    return value


def _reporting(report: Callable[..., None], upload: Callable[..., Checkpoint] | None) -> Callable[..., None]:
    signature = inspect.signature(report)
    warned: set[str] = set()

    @functools.wraps(report)
    def report_plainly(*arguments: Any, **options: Any) -> None:
        call = signature.bind(*arguments, **options)
        call.apply_defaults()
        given = call.arguments
        metrics, given["metrics"] = given["metrics"], plain(given["metrics"])
        for key in sorted(set(metrics) - warned):
            if given["metrics"][key] is not metrics[key]:
                warned.add(key)
                _log.warning("Metric %r is reported as a Python value, not as %s.", key, type(metrics[key]).__name__)
        if upload and given["checkpoint_upload_fn"] is None and _is_to_be_uploaded(**given):
            given["checkpoint_upload_fn"] = upload
        report(*call.args, **call.kwargs)

    return report_plainly


def _uploader(checkpoints: str) -> Callable[[Checkpoint, str], Checkpoint]:
    def upload(checkpoint: Checkpoint, name: str) -> Checkpoint:
        storage_upload.upload(Path(checkpoint.path), f"{checkpoints}/{name}")
        return stored_checkpoint(name)

    return upload


def _is_to_be_uploaded(checkpoint: Checkpoint | None, checkpoint_upload_mode: Any, **_: Any) -> bool:
    if checkpoint is None or checkpoint_upload_mode == CheckpointUploadMode.NO_UPLOAD:
        return False
    return bool(checkpoint.filesystem.type_name == "local")


def _warn_and_report(silent: Callable[..., None], *arguments: Any, **options: Any) -> None:
    _warn_of_silent_report()
    silent(*arguments, **options)


@functools.cache
def _warn_of_silent_report() -> None:
    _log.warning("ray.air.session.report() does nothing in this version of Ray Train; call ray.train.report() instead.")


def _refuse_report(*_: Any, **__: Any) -> None:
    raise JobError(
        "ray.tune.report() reaches nothing from inside a training function; call ray.train.report() there, and give "
        "the trainer TuneReportCallback (of ray.tune.integration.ray_train) where Tune needs the report."
    )
