"""The MLflow server: its address, its availability, and the run of a job on it."""

from __future__ import annotations

import socket
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mlplatform.contract import TAG_JOB, TAG_ROLE
from mlplatform.errors import AccessError, UnreachableError
from mlplatform.settings.environment import environment
from mlplatform.settings.job import settings

if TYPE_CHECKING:
    from mlflow.entities import Run


NOT_TRACKED = (
    "Nothing is tracked, because MLFLOW_TRACKING_URI is not set; start the stack with tracking "
    "(`make up` without ONLY=ray) or set it to your MLflow server."
)

_ACCOUNT = (
    *("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    *("MLFLOW_TRACKING_INSECURE_TLS", "MLFLOW_TRACKING_SERVER_CERT_PATH"),
)

_PROBE_SECONDS = 5

_PROBE = "/api/2.0/mlflow/experiments/search"


def uri() -> str | None:
    """Address of MLflow: the one that the program has set, else the one of the settings; None if nothing is tracked."""
    mlflow = sys.modules.get("mlflow")
    if mlflow is not None and mlflow.is_tracking_uri_set():
        return str(mlflow.get_tracking_uri())
    return settings().tracking_uri


def find_run(job_id: str, tracking_uri: str | None = None) -> Run | None:
    """The parent run of a job, in whatever experiment it is; None before the job has opened it.

    Should two attempts have opened one each at the same moment, it is the earlier one for everybody.

    Args:
        tracking_uri: None takes the server that the process uses.
    """
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri)
    pages = [client.search_experiments()]
    while pages[-1].token:
        pages.append(client.search_experiments(page_token=pages[-1].token))
    runs = client.search_runs(
        [experiment.experiment_id for page in pages for experiment in page],
        f"tags.`{TAG_JOB}` = '{job_id}' and tags.`{TAG_ROLE}` = 'job'",
        order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
        max_results=1,
    )
    return runs[0] if runs else None


def own_account() -> dict[str, str]:
    """The account at MLflow that this process has in its environment; Ray hands on what the job was submitted with."""
    variables = environment()
    return {variable: variables[variable] for variable in _ACCOUNT if variable in variables}


def run_url(run: Run) -> str:
    """The run's page in MLflow's web interface."""
    page = settings().tracking_page or uri()
    return f"{page}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"


def check(tracking_uri: str) -> None:
    """Ask MLflow one question, without the minutes of retries that its client allows itself.

    Raises:
        UnreachableError: nothing answers, or what answers is not MLflow.
        AccessError: the credentials are refused, or there are none for Databricks on this node.
    """
    if tracking_uri.partition(":")[0] == "databricks":
        _check_databricks(tracking_uri)
    if not tracking_uri.startswith(("http://", "https://")):
        return
    import mlflow
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    start = f"MLflow at {tracking_uri} (MLFLOW_TRACKING_URI)"
    try:
        response = http_request(  # type: ignore[no-untyped-call]
            get_default_host_creds(tracking_uri),  # type: ignore[no-untyped-call]
            _PROBE,
            "GET",
            params={"max_results": 1},
            max_retries=0,
            timeout=_PROBE_SECONDS,
            raise_on_status=False,
        )
    except mlflow.MlflowException as error:
        raise UnreachableError(f"{start} does not answer; start it or correct the address.") from error
    if response.status_code in (401, 403):
        raise AccessError(
            f"{start} refuses the credentials ({response.status_code}); "
            "put your account into ~/.mlflow/credentials (`mlplatform env` says how)."
        )
    if response.status_code != 200:
        raise UnreachableError(f"{start} answers {response.status_code}; check that the address is MLflow's.")


def _check_databricks(tracking_uri: str) -> None:
    """Whether this node knows an account; not whether Databricks takes it, as its client may try that for minutes."""
    variables = environment()
    file = Path(variables.get("DATABRICKS_CONFIG_FILE") or "~/.databrickscfg").expanduser()
    if not variables.get("DATABRICKS_HOST") and not file.is_file():
        raise AccessError(
            f"MLflow is to be {tracking_uri} (MLFLOW_TRACKING_URI), but {socket.gethostname()} has no {file}. Copy the "
            f"file that `databricks configure` writes to {settings().shared_folder}, which every node sees, and submit "
            "the job with DATABRICKS_CONFIG_FILE naming it there; or with DATABRICKS_HOST and DATABRICKS_TOKEN."
        )


@cache
def report_untracked() -> None:
    """Once a process, also where both `job_run` and `run_config` find it out."""
    print(NOT_TRACKED, file=sys.stderr, flush=True)
