"""Ray Tune callback that keeps one MLflow run per trial."""

from __future__ import annotations

import atexit
import functools
import json
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune

from mlplatform.compat.ray_tune import DONE, FILLED_IN, TIMESTAMP, TRAINING_ITERATION, flatten_dict, is_function
from mlplatform.contract import REPORT
from mlplatform.tracking import server
from mlplatform.tracking.metrics import Point
from mlplatform.tracking.outbox import FLUSH_SECONDS, Outbox
from mlplatform.training.history import FIELDS
from mlplatform.training.reports import numbers, step_of
from mlplatform.training.workers import plain
from mlplatform.tuning.trial_runs import COMPLETED, EARLY_STOPPED, FAILED, STOPPED, Act, TrialRuns

if TYPE_CHECKING:
    from ray.tune.experiment import Trial


_KILLED_SECONDS = 2.0
"""Ray follows up SIGTERM with SIGKILL after 3 s."""

_log = logging.getLogger(__name__)


def _never_raises(hook: Callable[..., None]) -> Callable[..., None]:
    """Log the exceptions of a hook, which would otherwise end the whole search."""

    @functools.wraps(hook)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            hook(*arguments, **options)
        except Exception:
            _log.exception("A trial was not tracked; the search continues.")

    return guarded


class TrialCallback(tune.Callback):  # type: ignore[misc]
    """Callback that keeps one child run per trial; a thread makes the requests, so Ray Tune's loop never waits."""

    def __init__(self, name: str, parent: str | None, length: tuple[str, int] | None = None) -> None:
        """Set up the callback.

        Args:
            name: name of the search.
            parent: id of the job's run; None if nothing is tracked.
            length: key and value of a report that ends every trial.
        """
        self.length = length
        self._name = name
        self._parent = parent
        self._outbox: Outbox | None = None
        self._open: set[str] = set()
        self._cut: set[str] = set()
        self._ended: list[Act] = []
        self._in_snapshot: list[Act] = []
        self._settled = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without thread, trials and address: a restored search has the callback of its first attempt."""
        return TrialCallback, (self._name, self._parent, self.length)

    @_never_raises
    def setup(self, **info: Any) -> None:
        self._settled = False
        if self._parent:
            self._outbox = Outbox(TrialRuns(self._parent, self._name, server.uri()))
            # SIGTERM and an error in the driver end Ray's loop without a call to `on_experiment_end`.
            atexit.register(self._interrupted)

    @_never_raises
    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        if not self._settled:
            self._settle(trials)

    @_never_raises
    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._start(trial)
        # The trial does not repeat the report of the checkpoint that it continues from, and the earlier attempt may
        # have been killed before it was sent.
        if trial.latest_checkpoint_result:
            self._report(trial, trial.latest_checkpoint_result.metrics)

    @_never_raises
    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        report = {**reported(result), "step": _step(result), **{key: result[key] for key in FIELDS if key in result}}
        print(f"{REPORT} {json.dumps({'run': self._name, 'trial': trial.trial_id, **report}, default=str)}", flush=True)
        self._report(trial, result, stamp=False)
        if was_cut(result, trial.stopping_criterion, self.length) and is_function(trial):
            self._cut.add(trial.trial_id)

    @_never_raises
    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._end(trial, EARLY_STOPPED if trial.trial_id in self._cut else COMPLETED)

    @_never_raises
    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        # A trial whose process never started has no run yet.
        self._start(trial)
        self._end(trial, FAILED)

    def get_state(self) -> None:
        """Pass on the ends of trials; Ray calls this with each snapshot of the search, to which it adds nothing.

        At each call, the snapshot before the last is certain to be stored. A run ends only after its trial's end is
        stored, so that no later attempt repeats a trial that is FINISHED in MLflow.
        """
        for act in self._in_snapshot:
            self._hand_over(act)
        self._in_snapshot, self._ended = self._ended, []

    @_never_raises
    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        self._settle(trials)
        for trial in trials:
            self._end(trial, FAILED if trial.status == trial.ERROR else STOPPED)
        self._close()

    def _start(self, trial: Trial) -> None:
        self._open.add(trial.trial_id)
        self._cut.discard(trial.trial_id)
        self._hand_over(partial(TrialRuns.start, **_identity(trial)))

    def _end(self, trial: Trial, end: str) -> None:
        if trial.trial_id not in self._open:
            return
        self._open.remove(trial.trial_id)
        error = Path(trial.error_file).read_text() if end == FAILED and trial.error_file else None
        self._hand_over(partial(TrialRuns.mark, trial_id=trial.trial_id, end=end, error=error))
        self._ended.append(partial(TrialRuns.finish, trial_id=trial.trial_id, end=end, ended=_now()))

    def _settle(self, trials: list[Trial]) -> None:
        """End the runs of trials that ended in an earlier attempt, which crashed before it could end them."""
        self._settled = True
        for trial in trials:
            if trial.trial_id not in self._open and trial.status in (trial.TERMINATED, trial.ERROR):
                end = FAILED if trial.status == trial.ERROR else COMPLETED
                points = _points(trial.last_result)
                self._hand_over(partial(TrialRuns.settle, **_identity(trial), points=points, end=end))

    def _interrupted(self) -> None:
        """End all open runs, because the driver ends in the middle of the search."""
        for trial_id in self._open:
            self._hand_over(partial(TrialRuns.mark, trial_id=trial_id, end=STOPPED, error=None))
            self._ended.append(partial(TrialRuns.finish, trial_id=trial_id, end=STOPPED, ended=_now()))
        self._close(_KILLED_SECONDS)

    def _close(self, timeout_s: float = FLUSH_SECONDS) -> None:
        atexit.unregister(self._interrupted)
        for act in (*self._in_snapshot, *self._ended):
            self._hand_over(act)
        self._in_snapshot, self._ended = [], []
        if self._outbox:
            self._outbox.close(timeout_s)

    def _report(self, trial: Trial, result: Mapping[str, Any], stamp: bool = True) -> None:
        points = _points(result, None if stamp else _now())
        self._hand_over(partial(TrialRuns.report, trial_id=trial.trial_id, points=points))

    def _hand_over(self, act: Act) -> None:
        if self._outbox:
            self._outbox.put([act])


def reported(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trial's own report, without the fields that Ray Tune adds; nested keys are joined by slashes."""
    own = {key: value for key, value in result.items() if key not in FILLED_IN}
    return plain(flatten_dict(own))


def was_cut(result: Mapping[str, Any], criteria: Mapping[str, float], length: tuple[str, int] | None) -> bool:
    """Return whether a trial was stopped by its last report before its regular end.

    Args:
        result: as Ray Tune passes it to callbacks, with `done` if the trial ends with it.
        criteria: minimum values that end a trial, by key.
        length: key and value at which the scheduler ends every trial.
    """
    limits = [*criteria.items(), *([length] if length else [])]
    flat = flatten_dict(dict(result))
    return bool(result.get(DONE)) and not any(flat.get(key, float("-inf")) >= value for key, value in limits)


def _identity(trial: Trial) -> dict[str, Any]:
    title = f"{trial.experiment_dir_name} {trial.experiment_tag or trial.trial_id}"
    return {"trial_id": trial.trial_id, "title": title, "params": flatten_dict(dict(trial.config))}


def _points(result: Mapping[str, Any], timestamp: int | None = None) -> list[Point]:
    """Return the points of a report, with its own timestamp unless another one is given."""
    timestamp = timestamp or int(result.get(TIMESTAMP, 0)) * 1000 or _now()
    return [Point(key, value, _step(result), timestamp) for key, value in numbers(reported(result)).items()]


def _step(result: Mapping[str, Any]) -> int:
    # Ray counts reports from 1 and restores the count with the checkpoint.
    return step_of(result, int(result.get(TRAINING_ITERATION, 1)) - 1)


def _now() -> int:
    return time.time_ns() // 1_000_000
