"""The MLflow server: its address, its availability, and the run of a job on it."""

from __future__ import annotations

import socket
import sys
from functools import cache
from typing import TYPE_CHECKING

from mlplatform.client.mlflow_rest import MlflowRest, RejectedError
from mlplatform.contract import TAG_JOB, TAG_ROLE
from mlplatform.errors import AccessError, UnreachableError
from mlplatform.settings.accounts import TrackingAccount
from mlplatform.settings.job import settings

if TYPE_CHECKING:
    from mlflow.entities import Run


NOT_TRACKED = (
    "Nothing is tracked, because MLFLOW_TRACKING_URI is not set; start the stack with tracking "
    "(`make up` without ONLY=ray) or set it to your MLflow server."
)

_CONNECT_SECONDS = 5.0

_ANSWER_SECONDS = 60.0
"""A server that accepts a connection is there: beside twenty jobs that started on two cores, it took over 5 s."""


def uri() -> str | None:
    """Return MLflow's address as the program has set it, else that of the settings; None if nothing is tracked."""
    mlflow = sys.modules.get("mlflow")
    if mlflow is not None and mlflow.is_tracking_uri_set():
        return str(mlflow.get_tracking_uri())
    return settings().tracking_uri


def experiment_ids(tracking_uri: str | None = None) -> list[str]:
    """Return the ids of all experiments of an MLflow server; None means the one that the process uses."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri)
    pages = [client.search_experiments()]
    while pages[-1].token:
        pages.append(client.search_experiments(page_token=pages[-1].token))
    return [experiment.experiment_id for page in pages for experiment in page]


def find_run(job_id: str, tracking_uri: str | None = None, experiments: list[str] | None = None) -> Run | None:
    """Return the parent run of a job, in any experiment; None before the job has opened it.

    If two attempts have opened one each at the same moment, every caller gets the earlier one.

    Args:
        job_id: of the job.
        tracking_uri: MLflow server; None means the one that the process uses.
        experiments: ids of those to search, if the caller has asked for them already.
    """
    from mlflow import MlflowClient

    runs = MlflowClient(tracking_uri).search_runs(
        experiment_ids(tracking_uri) if experiments is None else experiments,
        f"tags.`{TAG_JOB}` = '{job_id}' and tags.`{TAG_ROLE}` = 'job'",
        order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
        max_results=1,
    )
    return runs[0] if runs else None


def existing_run(run_id: str) -> Run | None:
    """Return a run by its id; None if MLflow does not have it, or it was deleted."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        run = MlflowClient().get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    return run if run.info.lifecycle_stage == "active" else None


def run_url(run: Run) -> str:
    """Return the address of the run's page at the MLflow server that this process uses, as a browser reaches it."""
    return f"{settings().page_of(uri() or '')}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"


def check(tracking_uri: str) -> None:
    """Send MLflow one request, without the minutes of retries that its client makes.

    Raises:
        UnreachableError: nothing accepts a connection within 5 s or answers within 60 s, or it is not MLflow.
        AccessError: MLflow rejected the account, or this node has none for Databricks.
    """
    if tracking_uri.partition(":")[0] == "databricks":
        _check_databricks(tracking_uri)
    if not tracking_uri.startswith(("http://", "https://")):
        return
    with MlflowRest(tracking_uri, timeout_s=_ANSWER_SECONDS, connect_s=_CONNECT_SECONDS) as mlflow:
        try:
            mlflow.call("GET", "experiments/search", {"max_results": 1})
        except RejectedError as error:
            raise UnreachableError(f"{error}; check that the address is MLflow's.") from error
        except AccessError:
            # MLflow's client may succeed with a signature that only its plugin can create.
            if not TrackingAccount.load().is_signed_by_a_plugin:
                raise


def _check_databricks(tracking_uri: str) -> None:
    """Check that this node has an account, not that Databricks accepts it: its client may retry that for minutes."""
    account = TrackingAccount.load()
    if not account.databricks_host and not account.databricks_config.is_file():
        raise AccessError(
            f"MLFLOW_TRACKING_URI is {tracking_uri!r}, but {account.databricks_config} does not exist on "
            f"{socket.gethostname()}. Copy the file that `databricks configure` writes to {settings().shared_folder}, "
            "which every node sees, and submit the job with DATABRICKS_CONFIG_FILE naming it there; or with "
            "DATABRICKS_HOST and DATABRICKS_TOKEN."
        )


@cache
def report_untracked() -> None:
    """Print once per process that nothing is tracked; both `job_run` and `run_config` may detect it."""
    print(NOT_TRACKED, file=sys.stderr, flush=True)
