"""Ray Train wired to the job: storage of checkpoints, restarts, and reports to MLflow and storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ray.train import CheckpointConfig, FailureConfig, RunConfig, UserCallback

from mlplatform.compat import ray_train
from mlplatform.settings.accounts import TrackingAccount
from mlplatform.settings.environment import set_default_environment
from mlplatform.settings.job import settings
from mlplatform.storage import addresses, checkpoints, fence, filesystem, objects
from mlplatform.tracking import run, server
from mlplatform.tracking.metric_names import metric_prefix
from mlplatform.tracking.metrics import RunSink
from mlplatform.tracking.outbox import Outbox
from mlplatform.training import leaving
from mlplatform.training.history import HistorySink
from mlplatform.training.names import next_name
from mlplatform.training.reports import Reports
from mlplatform.training.workers import WorkerSetup

_HISTORY_SECONDS = 5.0
"""Seconds between two writes of the history, each of which re-uploads up to a thousand reports."""

_RAY_TRAIN = {
    # Ray Train collects reports every 2 s by default, and makes report() wait for it.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # Ray Train logs which ranks the others wait for in a report; after 60 s by default.
    "RAY_TRAIN_COLLECTIVE_WARN_INTERVAL_S": "20",
    # A stopped node leaves 30 s for a checkpoint; by default, workers would notice only after up to 5 s.
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
}


def run_config(
    name: str | None = None,
    *,
    metric: str | None = None,
    mode: Literal["min", "max"] = "max",
    num_to_keep: int | None = 2,
    max_failures: int = 3,
    controller_failure_limit: int = 3,
    aggregate: Literal["rank0", "mean", "max"] = "rank0",
    detailed: bool = False,
    callbacks: Sequence[UserCallback] = (),
) -> RunConfig:
    """Return Ray's own `RunConfig` for a training run of this job.

    Checkpoints go to `<storage>/<job id>/<name>`, so a later attempt of the same job resumes from the last one.
    Each report goes to the job's MLflow run, which is opened if `job_run` has not done so, to the job's log, as one
    line, and to a file beside the checkpoints, which `history` reads. The metrics of a job's second and later training
    runs are in MLflow under `<name>/`, because each metric has one point per step. When a node is about to be removed,
    or the job is asked to leave for another team's, `ray.train.get_preemption_info()` reports it in the training
    function within about a second. That is the moment for a checkpoint (`PreemptionCheckpoint` writes it for
    Lightning): the workers are restarted elsewhere when the node's grace period ends, and a job that is asked to leave
    leaves when it has stored its next checkpoint.

    Args:
        name: name of this training run within the job; None counts the calls in this process from 0.
        metric: key of the reported metric by which checkpoints are kept; None keeps the latest.
        mode: whether a higher or a lower `metric` is better.
        num_to_keep: checkpoints that stay in storage, besides the latest; None keeps all.
        max_failures: failures of workers after which the training restarts from the last checkpoint.
        controller_failure_limit: failures of Ray Train's own controller after which it is restarted.
        aggregate: how the values of all ranks are combined: rank 0's value, the mean or the highest.
        detailed: record, besides timestamp, iteration and time, each rank's own metrics with its host and process,
            the job, iterations and seconds since the last restore, and `done` in the last report.
        callbacks: further callbacks of Ray Train.

    Raises:
        StorageError, UnreachableError, AccessError: storage or MLflow cannot be used; raised before training starts.
        SettingsError: a setting is invalid.
    """
    name = name or next_name()
    uri = addresses.checkpoint_uri(name)
    fence.check()
    objects.check_writable(addresses.checkpoint_uri())
    set_default_environment(_RAY_TRAIN)
    ray_train.end_trainings_at_once()
    run_id = run.process_run(name)
    leaving.stay_until_saved()  # after the run, which may replace the handler of SIGTERM
    if metric:
        checkpoints.restore_nan(uri, metric)
    # Ray does not pass it on to the controller and the workers.
    account = TrackingAccount.load().environment()
    reports = Reports(
        name,
        uri,
        history=Outbox(HistorySink(uri), interval_s=_HISTORY_SECONDS),
        metrics=Outbox(RunSink(run_id, server.uri())) if run_id else None,
        prefix=metric_prefix(run_id, name, server.uri()) if run_id else "",
        aggregate=aggregate,
        detailed=detailed,
        kept_by=metric,
        account=account,
    )
    files, path = filesystem.filesystem(addresses.checkpoint_uri())
    identity = {
        "MLPLATFORM_JOB_ID": settings().job_id,
        "MLPLATFORM_ATTEMPT": str(settings().attempt) if fence.applies() else None,
        # Also if the program has set a server other than the platform's.
        "MLFLOW_TRACKING_URI": server.uri(),
    }
    return RunConfig(
        name=name,
        storage_path=path,
        storage_filesystem=files,
        failure_config=FailureConfig(max_failures=max_failures, controller_failure_limit=controller_failure_limit),
        checkpoint_config=CheckpointConfig(
            num_to_keep=num_to_keep, checkpoint_score_attribute=metric, checkpoint_score_order=mode
        ),
        callbacks=[reports, WorkerSetup(uri, account), *callbacks],
        worker_runtime_env={"env_vars": {variable: value for variable, value in identity.items() if value}},
    )
