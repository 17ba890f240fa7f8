"""Developer and internal names of Ray Tune; seen in Ray 2.60.0. Imported by `tuning` only, which imports Ray anyway."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ray.tune.result import (
    AUTO_RESULT_KEYS,
    DONE,
    EXPERIMENT_TAG,
    SHOULD_CHECKPOINT,
    TIMESTAMP,
    TRAINING_ITERATION,
    TRIAL_ID,
)
from ray.tune.trainable import FunctionTrainable
from ray.tune.utils import flatten_dict

if TYPE_CHECKING:
    from ray.tune.experiment import Trial
    from ray.tune.integration.ray_train import TuneReportCallback

__all__ = ["DONE", "TIMESTAMP", "TRAINING_ITERATION", "TRIAL_ID", "flatten_dict"]  # Ray's, for others

FILLED_IN = {*AUTO_RESULT_KEYS, DONE, EXPERIMENT_TAG, SHOULD_CHECKPOINT, TRIAL_ID}
"""Keys of a result that Ray Tune adds to what the trial has reported."""

_TUNER = "tuner.pkl"

_SNAPSHOT = "experiment_state-"


def is_begun(names: Collection[str]) -> bool:
    """Return whether a search's folder with these files holds a search that can continue.

    `Tuner.can_restore` looks only for the file that a `Tuner` writes when it is created. Without a snapshot beside it,
    Ray starts again, but with one trial instead of `num_samples`.
    """
    return _TUNER in names and any(name.startswith(_SNAPSHOT) for name in names)


def is_function(trial: Trial) -> bool:
    """Return whether a trial runs a function.

    A class that ends by itself looks the same as one that the scheduler has stopped.
    """
    return issubclass(trial.get_trainable_cls(), FunctionTrainable)


def report_queue(callback: TuneReportCallback) -> Any:
    """Return the queue, with one slot, through which reports of a trial's trainer reach the trial."""
    return callback._training_actor_item_queue


def schedule_length(scheduler: Any) -> tuple[str, int] | None:
    """Return key and value of a report at which a scheduler ends every trial; None if it has none.

    Schedulers keep both in private attributes, which differ by kind.
    """
    if not getattr(scheduler, "_stop_last_trials", True):
        return None
    most = getattr(scheduler, "_max_t", None) or getattr(scheduler, "_max_t_attr", None)
    key = getattr(scheduler, "_time_attr", None)
    return (key, most) if key and most else None
