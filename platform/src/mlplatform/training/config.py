"""Ray Train wired to the job: where checkpoints go, what is retried, and reports on their way to MLflow and storage."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from ray.train import CheckpointConfig, FailureConfig, RunConfig, UserCallback

from mlplatform.settings.environment import set_default_environment
from mlplatform.settings.job import settings
from mlplatform.storage import addresses, checkpoints, fence, filesystem, objects
from mlplatform.tracking import run, server
from mlplatform.tracking.metric_names import metric_prefix
from mlplatform.tracking.metrics import MetricWriter
from mlplatform.tracking.outbox import Outbox
from mlplatform.training.history import HistorySink
from mlplatform.training.reports import Reports
from mlplatform.training.workers import WorkerSetup

_HISTORY_SECONDS = 5.0
"""Between two writes of the history, each of which sends up to a thousand reports again."""

_RAY_TRAIN = {
    # Ray Train collects reports every 2 s unless told otherwise, and makes report() wait for it.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # Names the ranks that the others wait for in a report, in the job's log; 60 s unless told otherwise.
    "RAY_TRAIN_COLLECTIVE_WARN_INTERVAL_S": "20",
    # A node that is stopped leaves 30 s for a checkpoint; 5 of them would be spent until the workers hear of it.
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
}

_fit_calls = itertools.count()


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
    """Ray's own `RunConfig` for a training run of this job.

    Checkpoints go to `<storage>/<job id>/<name>`, so a later attempt of the same job resumes from the last one.
    What is reported goes to the job's MLflow run, which is opened if `job_run` has not done so, to the job's log, one
    line a report, and beside the checkpoints, where `history` reads it. The metrics of a job's second training run
    stand in MLflow under `<name>/`, because each metric has one point a step. When a node is about to be taken away,
    `ray.train.get_preemption_info()` says so to the training function within about a second: the moment for a
    checkpoint, as the workers are started again elsewhere when the node's grace period ends (`PreemptionCheckpoint`
    does it for Lightning).

    Args:
        name: of this training run within the job; None counts the calls in this process from 0.
        metric: by which checkpoints are kept, a key of the reported metrics; None keeps the latest.
        mode: whether a higher or a lower `metric` is better.
        num_to_keep: checkpoints that stay in storage, beside the latest; None keeps all.
        max_failures: worker failures that are survived by starting again from the last checkpoint.
        controller_failure_limit: failures of Ray Train's own controller that are survived.
        aggregate: what is kept of a metric that all ranks report: rank 0's value, the mean or the highest.
        detailed: keep, besides timestamp, iteration and time, each rank's own metrics with its host and process,
            the job, iterations and seconds since the last restore, and a mark on the last report.
        callbacks: more of Ray Train's callbacks.

    Raises:
        StorageError, UnreachableError, AccessError: storage or MLflow cannot be used, said before training starts.
        SettingsError: a setting is not valid.
    """
    name = name or str(next(_fit_calls))
    uri = addresses.checkpoint_uri(name)
    fence.check()
    objects.check_writable(addresses.checkpoint_uri())
    set_default_environment(_RAY_TRAIN)
    run_id = run.process_run(name)
    if metric:
        checkpoints.restore_nan(uri, metric)
    account = server.own_account()
    reports = Reports(
        name,
        uri,
        history=Outbox(HistorySink(uri), interval_s=_HISTORY_SECONDS),
        metrics=MetricWriter(run_id, server.uri()) if run_id else None,
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
        # Also where the program has named another server than the platform's.
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
