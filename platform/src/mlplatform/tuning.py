"""Ray Tune wired to the job: a child run a trial, ASHA unless told otherwise, and a search that survives its driver."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ray.train
from ray import tune

# Lets something finish before a trial's trainer returns; the public kind of callback sees reports only.
from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.tune.result import (
    AUTO_RESULT_KEYS,
    DONE,
    EXPERIMENT_TAG,
    SHOULD_CHECKPOINT,
    TIMESTAMP,
    TRAINING_ITERATION,
    TRIAL_ID,
)
from ray.tune.schedulers import ASHAScheduler
from ray.tune.trainable import FunctionTrainable
from ray.tune.utils import flatten_dict

from mlplatform import checkpoints, storage, tracking
from mlplatform.errors import RegistryError
from mlplatform.jobs import REPORT
from mlplatform.metrics import Point
from mlplatform.outbox import Outbox
from mlplatform.report_history import FIELDS
from mlplatform.reports import numbers, step_of
from mlplatform.settings import set_default_environment
from mlplatform.trials import COMPLETED, EARLY_STOPPED, FAILED, STOPPED, Act, TrialRuns
from mlplatform.worker_setup import WorkerSetup, plain

if TYPE_CHECKING:
    from mlflow.entities import Run
    from pyarrow.fs import FileSystem
    from ray.tune.experiment import Trial

_RAY_TUNE = {
    # Of what has happened since the last snapshot, a restored search knows nothing; Ray takes one every 10 s or less
    # often.
    "TUNE_GLOBAL_CHECKPOINT_S": "2",
    # A snapshot with each second checkpoint of a trial is what `num_to_keep` needs; no warning is.
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    # Reports of a trial's own trainer are collected every 2 s unless told otherwise.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
}
_KILLED_SECONDS = 2.0
"""Ray follows up SIGTERM with SIGKILL after 3 s."""

_DRAIN_SECONDS = 30.0
_SNAPSHOT = "experiment_state-"
_FILLED_IN = {*AUTO_RESULT_KEYS, DONE, EXPERIMENT_TAG, SHOULD_CHECKPOINT, TRIAL_ID}

_log = logging.getLogger(__name__)


def tuner(
    trainable: Any,
    *,
    param_space: Mapping[str, Any],
    tune_config: tune.TuneConfig,
    run_config: tune.RunConfig | None = None,
    resume_errored: bool = False,
) -> tune.Tuner:
    """Ray's own `Tuner` for a search of this job, or the one that an earlier attempt of the job has begun.

    Its trials are child runs of the job's run. Started again with the same job id, `fit` runs no finished trial
    again, and continues an unfinished one in its run, from its last checkpoint.

    Args:
        trainable: as Ray takes it, also from `tune.with_resources` (`{"cpu": 0.5}`, `{"gpu": 0.25}`) and
            `tune.with_parameters`. For several workers a trial, see `trial_config`.
        param_space: as Ray takes it (`tune.grid_search`, `tune.loguniform`); the same in each attempt.
        tune_config: with `metric` and `mode`. Without a scheduler it gets ASHA, which stops a trial after 1, 4, 16, ...
            reports unless it is then among the best quarter, and leaves the trial's length to the trial.
        run_config: from `tuning.run_config`; None names the search "tune".
        resume_errored: whether a later attempt tries trials again that have failed.

    Raises:
        StorageError, UnreachableError, AccessError: storage or MLflow cannot be used, said before a trial starts.
        SettingsError: a setting is not valid.
        ValueError: as Ray raises it, when an earlier attempt had another `param_space` or trainable.
    """
    run_config = run_config or _run_config_of(tune_config)
    path = f"{run_config.storage_path}/{run_config.name}"
    if _is_begun(run_config.storage_filesystem, path):
        return tune.Tuner.restore(
            path,
            trainable,
            resume_errored=resume_errored,
            param_space=dict(param_space),
            storage_filesystem=run_config.storage_filesystem,
        )
    tune_config = replace(
        tune_config,
        scheduler=tune_config.scheduler or ASHAScheduler(stop_last_trials=False),
        trial_dirname_creator=tune_config.trial_dirname_creator or trial_folder,
    )
    for callback in run_config.callbacks or []:
        if isinstance(callback, TrialCallback):
            callback.length = _length(tune_config.scheduler)
    return tune.Tuner(trainable, param_space=dict(param_space), tune_config=tune_config, run_config=run_config)


def run_config(
    name: str = "tune",
    *,
    metric: str | None = None,
    mode: Literal["min", "max"] = "max",
    num_to_keep: int | None = 2,
    max_failures: int = 3,
    stop: Any = None,
    callbacks: Sequence[tune.Callback] = (),
) -> tune.RunConfig:
    """Ray Tune's own `RunConfig` for a search of this job.

    Checkpoints go to `<storage>/<job id>/<name>/<trial id>`. What a trial reports goes to its child run and to the
    job's log, one line a report.

    Args:
        name: of this search within the job.
        metric: by which a trial's checkpoints are kept, a key of what it reports; None keeps the latest.
        mode: whether a higher or a lower `metric` is better.
        num_to_keep: checkpoints of a trial that stay in storage; None keeps all.
        max_failures: failures of a trial that are survived by starting it again from its last checkpoint.
        stop: when a trial has run its course, as Ray takes it (`{"epoch": 10}`).
        callbacks: more of Ray Tune's callbacks.

    Raises:
        StorageError, UnreachableError, AccessError: storage or MLflow cannot be used, said before a trial starts.
        SettingsError: a setting is not valid.
    """
    storage.check_writable(storage.checkpoint_uri())
    set_default_environment(_RAY_TUNE)
    files, path = storage.filesystem(storage.checkpoint_uri())
    return tune.RunConfig(
        name=name,
        storage_path=path,
        storage_filesystem=files,
        failure_config=tune.FailureConfig(max_failures=max_failures),
        checkpoint_config=tune.CheckpointConfig(
            num_to_keep=num_to_keep, checkpoint_score_attribute=metric, checkpoint_score_order=mode
        ),
        stop=stop,
        # At 2, Ray would print each report, which is a line of the log already.
        verbose=1,
        callbacks=[TrialCallback(name, tracking.process_run()), *callbacks],
    )


def trial_config(
    *,
    metric: str | None = None,
    mode: Literal["min", "max"] = "max",
    num_to_keep: int | None = 2,
    max_failures: int = 3,
    controller_failure_limit: int = 3,
    callbacks: Sequence[ray.train.UserCallback] = (),
) -> ray.train.RunConfig:
    """Ray Train's own `RunConfig` for a trainer inside of a trial, which so runs on several workers.

    The trial is a function that calls `TorchTrainer(..., run_config=tuning.trial_config()).fit()`. It needs next to
    nothing for itself: give it `tune.with_resources(trial, {"cpu": 0.01})`, and let `max_concurrent_trials` say how
    many worker groups the cluster holds. What rank 0 reports is the trial's report, so it goes to the trial's run.
    Checkpoints go to the trial's folder, and a trial that is started again resumes from the last one; Ray passes on
    its path as metric `checkpoint_path` of the trial's result, not as the result's checkpoint.

    Args: as `mlplatform.run_config`.

    Raises:
        RuntimeError: as Ray raises it, outside of a trial.
    """
    from ray.tune.integration.ray_train import TuneReportCallback

    place = tune.get_context().get_storage()
    files, path = place.storage_filesystem, place.experiment_fs_path
    scheme = "s3://" if files.type_name.endswith("s3") else ""
    uri = f"{scheme}{path}/{place.trial_dir_name}"
    if metric:
        checkpoints.restore_nan(uri, metric)
    set_default_environment(_RAY_TUNE)
    reports = TuneReportCallback()
    return ray.train.RunConfig(
        name=place.trial_dir_name,
        storage_path=path,
        storage_filesystem=files,
        failure_config=ray.train.FailureConfig(
            max_failures=max_failures, controller_failure_limit=controller_failure_limit
        ),
        checkpoint_config=ray.train.CheckpointConfig(
            num_to_keep=num_to_keep, checkpoint_score_attribute=metric, checkpoint_score_order=mode
        ),
        callbacks=[
            reports,
            Drain(reports._training_actor_item_queue),
            WorkerSetup(uri),
            *callbacks,
        ],
    )


def best(
    results: tune.ResultGrid, metric: str | None = None, mode: Literal["min", "max"] | None = None
) -> tuple[tune.Result, Run | None]:
    """The best trial by its last report: its result with the checkpoint, and its run, which a model can be logged to.

    Args:
        metric: None takes the one of the search.
        mode: None takes the one of the search.

    Returns:
        Ray's result, and MLflow's run; None for the latter where nothing is tracked.

    Raises:
        RegistryError: no trial has reported the metric, or MLflow has refused the run of the best one.
    """
    try:
        result = results.get_best_result(metric, mode)
    except (RuntimeError, ValueError) as error:
        raise RegistryError(f"There is no best trial in {results.experiment_path}: {error}") from error
    parent = tracking.process_run()
    if parent is None:
        return result, None
    runs = TrialRuns(parent, Path(results.experiment_path).name, tracking.uri())
    runs.open()
    run = runs.find(result.metrics[TRIAL_ID])
    if run is None:
        raise RegistryError(f"Trial {result.metrics[TRIAL_ID]} has no run in MLflow; see the job's log for the reason.")
    return result, run


def trial_folder(trial: Trial) -> str:
    """A trial's folder is its id: with the parameters, which Ray puts there, a path can become too long."""
    return str(trial.trial_id)


def _never_raises(hook: Callable[..., None]) -> Callable[..., None]:
    """What a callback raises would end the whole search."""

    @functools.wraps(hook)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            hook(*arguments, **options)
        except Exception:
            _log.exception("A trial was not tracked; the search goes on.")

    return guarded


class TrialCallback(tune.Callback):  # type: ignore[misc]
    """Runs in Ray Tune's loop: hands over to a thread, which keeps a child run a trial; neither waits nor raises."""

    def __init__(self, name: str, parent: str | None, length: tuple[str, int] | None = None) -> None:
        """Args: name: of the search; parent: the job's run; length: key and value of a report that ends every trial."""
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
        """A restored search has the callback of its first attempt: without that one's thread, trials and address."""
        return TrialCallback, (self._name, self._parent, self.length)

    @_never_raises
    def setup(self, **info: Any) -> None:
        self._settled = False
        if self._parent:
            self._outbox = Outbox(TrialRuns(self._parent, self._name, tracking.uri()))
            # SIGTERM and an error of the driver leave Ray's loop without a call of `on_experiment_end`.
            atexit.register(self._interrupted)

    @_never_raises
    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        if not self._settled:
            self._settle(trials)

    @_never_raises
    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._start(trial)
        # What was reported with the checkpoint that it continues from is not reported again, and may not have been
        # sent when the earlier attempt was killed.
        if trial.latest_checkpoint_result:
            self._report(trial, trial.latest_checkpoint_result.metrics)

    @_never_raises
    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        report = {**reported(result), "step": _step(result), **{key: result[key] for key in FIELDS if key in result}}
        print(f"{REPORT} {json.dumps({'run': self._name, 'trial': trial.trial_id, **report}, default=str)}", flush=True)
        self._report(trial, result, stamp=False)
        if was_cut(result, trial.stopping_criterion, self.length) and _is_function(trial):
            self._cut.add(trial.trial_id)

    @_never_raises
    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._end(trial, EARLY_STOPPED if trial.trial_id in self._cut else COMPLETED)

    @_never_raises
    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        # One whose process never came up was not started either.
        self._start(trial)
        self._end(trial, FAILED)

    def get_state(self) -> None:
        """Called with each snapshot of the search. It has nothing of ours; the last but one is surely in storage.

        A run ends only after its trial's end is in storage: what MLflow calls finished, no later attempt runs again.
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
        """End the runs of trials that had ended in an earlier attempt, where a crash came in between."""
        self._settled = True
        for trial in trials:
            if trial.trial_id not in self._open and trial.status in (trial.TERMINATED, trial.ERROR):
                end = FAILED if trial.status == trial.ERROR else COMPLETED
                points = _points(trial.last_result)
                self._hand_over(partial(TrialRuns.settle, **_identity(trial), points=points, end=end))

    def _interrupted(self) -> None:
        """The driver ends in the middle of the search."""
        for trial_id in self._open:
            self._hand_over(partial(TrialRuns.mark, trial_id=trial_id, end=STOPPED, error=None))
            self._ended.append(partial(TrialRuns.finish, trial_id=trial_id, end=STOPPED, ended=_now()))
        self._close(_KILLED_SECONDS)

    def _close(self, timeout_s: float | None = None) -> None:
        atexit.unregister(self._interrupted)
        for act in (*self._in_snapshot, *self._ended):
            self._hand_over(act)
        self._in_snapshot, self._ended = [], []
        if self._outbox:
            self._outbox.close() if timeout_s is None else self._outbox.close(timeout_s)

    def _report(self, trial: Trial, result: Mapping[str, Any], stamp: bool = True) -> None:
        points = _points(result, None if stamp else _now())
        self._hand_over(partial(TrialRuns.report, trial_id=trial.trial_id, points=points))

    def _hand_over(self, act: Act) -> None:
        if self._outbox:
            self._outbox.put([act])


class Drain(ControllerCallback):  # type: ignore[misc]
    """Waits, at the end of a trial's trainer, until Ray Tune has taken the last report.

    Ray 2.60 blocks the trial for ever when its function returns while a report is on its way: the trial's actor then
    puts that report into a queue of one place, where the function's end already stands (`_get_result_from_queues`).
    """

    def __init__(self, queue: Any) -> None:
        """Args: queue: the one through which `TuneReportCallback` passes reports on."""
        self._queue = queue

    async def before_controller_shutdown(self) -> None:
        deadline = time.monotonic() + _DRAIN_SECONDS
        while not await asyncio.to_thread(self._queue.empty) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)


def reported(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the trial itself has reported, without the fields that Ray Tune fills in; nested keys joined by slashes."""
    own = {key: value for key, value in result.items() if key not in _FILLED_IN}
    return plain(flatten_dict(own))


def was_cut(result: Mapping[str, Any], criteria: Mapping[str, float], length: tuple[str, int] | None) -> bool:
    """Whether a trial's last report ends it for another reason than that it has run its course.

    Args:
        result: as Ray Tune gives it to callbacks, with `done` where the trial ends with it.
        criteria: lowest values that end a trial, by key.
        length: key and value at which the scheduler ends every trial.
    """
    limits = [*criteria.items(), *([length] if length else [])]
    flat = flatten_dict(dict(result))
    return bool(result.get(DONE)) and not any(flat.get(key, float("-inf")) >= value for key, value in limits)


def _run_config_of(tune_config: tune.TuneConfig) -> tune.RunConfig:
    return run_config(metric=tune_config.metric, mode=tune_config.mode or "max")


def _is_begun(files: FileSystem, path: str) -> bool:
    """Whether an earlier attempt has left a search that can go on.

    Ray asks for the file that a `Tuner` writes when it is made. Without a snapshot beside it, Ray begins anew, but
    with one trial instead of `num_samples`.
    """
    from pyarrow.fs import FileSelector

    found = {Path(info.path).name for info in files.get_file_info(FileSelector(path, allow_not_found=True))}
    return "tuner.pkl" in found and any(name.startswith(_SNAPSHOT) for name in found)


def _length(scheduler: Any) -> tuple[str, int] | None:
    """Key and value of a report at which a scheduler ends every trial; Ray keeps both to itself."""
    if not getattr(scheduler, "_stop_last_trials", True):
        return None
    most = getattr(scheduler, "_max_t", None) or getattr(scheduler, "_max_t_attr", None)
    key = getattr(scheduler, "_time_attr", None)
    return (key, most) if key and most else None


def _is_function(trial: Trial) -> bool:
    """Of a class, that it says by itself that it is done cannot be told from that it was stopped."""
    return issubclass(trial.get_trainable_cls(), FunctionTrainable)


def _identity(trial: Trial) -> dict[str, Any]:
    title = f"{trial.experiment_dir_name} {trial.experiment_tag or trial.trial_id}"
    return {"trial_id": trial.trial_id, "title": title, "params": flatten_dict(dict(trial.config))}


def _points(result: Mapping[str, Any], timestamp: int | None = None) -> list[Point]:
    """Points of a report, stamped with the second that stands in it unless told otherwise."""
    timestamp = timestamp or int(result.get(TIMESTAMP, 0)) * 1000 or _now()
    return [Point(key, value, _step(result), timestamp) for key, value in numbers(reported(result)).items()]


def _step(result: Mapping[str, Any]) -> int:
    # Ray counts reports from 1 and restores the count with the checkpoint.
    return step_of(result, int(result.get(TRAINING_ITERATION, 1)) - 1)


def _now() -> int:
    return time.time_ns() // 1_000_000
