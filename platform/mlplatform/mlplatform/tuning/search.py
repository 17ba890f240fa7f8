"""Public functions of a hyperparameter search: the tuner, its configurations, and the best trial."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ray.train
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from mlplatform.compat.ray_train import ControllerCallback
from mlplatform.compat.ray_tune import TRIAL_ID, is_begun, report_queue, schedule_length
from mlplatform.errors import RegistryError
from mlplatform.settings.environment import set_default_environment
from mlplatform.storage import addresses, checkpoints, fence, filesystem, objects
from mlplatform.tracking import run as tracking_run
from mlplatform.tracking import server
from mlplatform.training.workers import WorkerSetup
from mlplatform.tuning.callback import TrialCallback
from mlplatform.tuning.trial_runs import TrialRuns

if TYPE_CHECKING:
    from mlflow.entities import Run
    from pyarrow.fs import FileSystem
    from ray.tune.experiment import Trial


_DRAIN_SECONDS = 30.0

_RAY_TUNE = {
    # A restored search loses everything since its last snapshot; Ray takes one every 10 s or less often.
    "TUNE_GLOBAL_CHECKPOINT_S": "2",
    # `num_to_keep` needs a snapshot with each second checkpoint of a trial, about which Ray would warn.
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    # Reports of a trial's own trainer are collected every 2 s by default.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
}


def tuner(
    trainable: Any,
    *,
    param_space: Mapping[str, Any],
    tune_config: tune.TuneConfig,
    run_config: tune.RunConfig | None = None,
    resume_errored: bool = False,
) -> tune.Tuner:
    """Return Ray's own `Tuner` for a search of this job, restored if an earlier attempt of the job has started it.

    Its trials are child runs of the job's run. After a restart with the same job id, `fit` does not repeat finished
    trials, and continues unfinished ones in their runs, from their last checkpoints.

    Args:
        trainable: anything that Ray accepts, including results of `tune.with_resources` (`{"cpu": 0.5}`, `{"gpu":
            0.25}`) and `tune.with_parameters`. For several workers per trial, see `trial_config`.
        param_space: as Ray accepts it (`tune.grid_search`, `tune.loguniform`); the same in each attempt.
        tune_config: with `metric` and `mode`. Without a scheduler it gets ASHA, which stops a trial after 1, 4, 16, ...
            reports unless it is then among the best quarter, and does not limit the trial's length.
        run_config: from `tuning.run_config`; None names the search "tune".
        resume_errored: whether a later attempt repeats trials that have failed.

    Raises:
        StorageError, UnreachableError, AccessError: storage or MLflow cannot be used; raised before a trial starts.
        SettingsError: a setting is invalid.
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
            callback.length = schedule_length(tune_config.scheduler)
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
    """Return Ray Tune's own `RunConfig` for a search of this job.

    Checkpoints go to `<storage>/<job id>/<name>/<trial id>`. A trial's reports go to its child run and to the job's
    log, one line per report.

    Args:
        name: name of this search within the job.
        metric: key of the reported metric by which a trial's checkpoints are kept; None keeps the latest.
        mode: whether a higher or a lower `metric` is better.
        num_to_keep: checkpoints of a trial that stay in storage; None keeps all.
        max_failures: failures of a trial after which it restarts from its last checkpoint.
        stop: end of a trial, as Ray accepts it (`{"epoch": 10}`).
        callbacks: further callbacks of Ray Tune.

    Raises:
        StorageError, UnreachableError, AccessError: storage or MLflow cannot be used; raised before a trial starts.
        SettingsError: a setting is invalid.
    """
    fence.check()
    objects.check_writable(addresses.checkpoint_uri())
    set_default_environment(_RAY_TUNE)
    files, path = filesystem.filesystem(addresses.checkpoint_uri())
    return tune.RunConfig(
        name=name,
        storage_path=path,
        storage_filesystem=files,
        failure_config=tune.FailureConfig(max_failures=max_failures),
        checkpoint_config=tune.CheckpointConfig(
            num_to_keep=num_to_keep, checkpoint_score_attribute=metric, checkpoint_score_order=mode
        ),
        stop=stop,
        # With 2, Ray would print each report, which is already a line in the log.
        verbose=1,
        callbacks=[TrialCallback(name, tracking_run.process_run()), *callbacks],
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
    """Return Ray Train's own `RunConfig` for a trainer within a trial, for trials on several workers.

    The trial is a function that calls `TorchTrainer(..., run_config=tuning.trial_config()).fit()`. It needs almost no
    resources itself: give it `tune.with_resources(trial, {"cpu": 0.01})`, and set `max_concurrent_trials` to the number
    of worker groups that fit into the cluster. Rank 0's report is the trial's report, so it goes to the trial's run.
    Checkpoints go to the trial's folder, and a restarted trial resumes from the last one. Ray passes its path on as
    metric `checkpoint_path` of the trial's result, not as the result's checkpoint.

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
            Drain(report_queue(reports)),
            WorkerSetup(uri),
            *callbacks,
        ],
    )


def best(
    results: tune.ResultGrid, metric: str | None = None, mode: Literal["min", "max"] | None = None
) -> tuple[tune.Result, Run | None]:
    """Return the best trial by its last report: its result with the checkpoint, and its run, to log a model to.

    Args:
        metric: None means the metric of the search.
        mode: None means the mode of the search.

    Returns:
        Ray's result, and MLflow's run; None for the latter if nothing is tracked.

    Raises:
        RegistryError: no trial has reported the metric, or MLflow has rejected the run of the best one.
    """
    try:
        result = results.get_best_result(metric, mode)
    except (RuntimeError, ValueError) as error:
        raise RegistryError(f"There is no best trial in {results.experiment_path}: {error}") from error
    parent = tracking_run.process_run()
    if parent is None:
        return result, None
    runs = TrialRuns(parent, Path(results.experiment_path).name, server.uri())
    runs.open()
    run = runs.find(result.metrics[TRIAL_ID])
    if run is None:
        raise RegistryError(f"Trial {result.metrics[TRIAL_ID]} has no run in MLflow; see the job's log for the reason.")
    return result, run


class Drain(ControllerCallback):  # type: ignore[misc]
    """Callback that delays the end of a trial's trainer until Ray Tune has fetched the last report.

    Ray 2.60 blocks the trial forever if its function returns before a report is fetched: the trial's actor then puts
    that report into a queue with one slot, which the function's end already occupies (`_get_result_from_queues`).
    """

    def __init__(self, queue: Any) -> None:
        """Set up the callback.

        Args:
            queue: queue through which `TuneReportCallback` passes reports on.
        """
        self._queue = queue

    async def before_controller_shutdown(self) -> None:
        deadline = time.monotonic() + _DRAIN_SECONDS
        while not await asyncio.to_thread(self._queue.empty) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)


def trial_folder(trial: Trial) -> str:
    """Return a trial's id as its folder: with the parameters, which Ray adds by default, a path can become too long."""
    return str(trial.trial_id)


def _run_config_of(tune_config: tune.TuneConfig) -> tune.RunConfig:
    return run_config(metric=tune_config.metric, mode=tune_config.mode or "max")


def _is_begun(files: FileSystem, path: str) -> bool:
    """Return whether an earlier attempt has left a search that can be continued."""
    from pyarrow.fs import FileSelector

    return is_begun({Path(info.path).name for info in files.get_file_info(FileSelector(path, allow_not_found=True))})
