"""Settings with which a job, a notebook or a laptop reaches a platform, and those of a Ray node.

The stack's containers and the embedded platform have them as environment variables, so user code sets nothing.
"""

from __future__ import annotations

import getpass
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from mlplatform.compat import ray_core
from mlplatform.contract import LOCAL_USER
from mlplatform.secrets import secret_folder
from mlplatform.settings import proxies
from mlplatform.settings.load import EnvironmentSettings, label_selector

HTTP = ("http://", "https://")
"""Beginnings of an address of the Jobs API."""

_JOB = {"job_id", "attempt", "grace_s", "user", "git_commit", "git_diff", "entrypoint", "note"}

_OF_ONE_PROCESS = _JOB | {"image", "ca_bundle", "gateway", "attempt_token"}
"""Settings that describe a single process, so they are not passed to another one."""


class Settings(EnvironmentSettings):
    """Addresses, paths and identity of the current process; secrets stay in the files that the paths name."""

    tracking_uri: str | None = Field(None, validation_alias="MLFLOW_TRACKING_URI")
    """MLflow server; None means that nothing is tracked (a stack started with ONLY=ray)."""

    platform_tracking_uri: str | None = Field(None, validation_alias="MLPLATFORM_TRACKING_URI")
    """The platform's own MLflow, whatever a job sets `tracking_uri` to; its account is sent nowhere else."""

    tracking_password_file: Path | None = Field(None, validation_alias="MLPLATFORM_TRACKING_PASSWORD_FILE")
    """File with the password for the embedded platform's MLflow; None elsewhere."""

    tracking_page: str | None = Field(None, validation_alias="MLPLATFORM_TRACKING_PAGE")
    """Address of MLflow for browsers, if it differs from the one for programs."""

    ray_address: str = Field("http://127.0.0.1:8265", validation_alias="RAY_ADDRESS")
    """Address of Ray's Jobs API, which the gateway serves."""

    ray_auth_token_path: Path | None = Field(None, validation_alias="RAY_AUTH_TOKEN_PATH")
    """File that holds the token for `ray_address`; `token_file` has the default."""

    gateway: str | None = Field(None, validation_alias=secret_folder.GATEWAY)
    """Address of the platform's gateway on its nodes; None elsewhere."""

    attempt_token: str | None = Field(None, validation_alias=secret_folder.TOKEN, repr=False)
    """Token of this attempt of a job, which is sent to `gateway` only."""

    storage: str = Field("s3://ray", validation_alias="MLPLATFORM_STORAGE")
    """Storage of checkpoints: `s3://bucket[/prefix]` or an absolute folder; each job has its own sub-folder."""

    datasets: str = Field("s3://datasets", validation_alias="MLPLATFORM_DATASETS")
    """Storage of data sets: `s3://bucket[/prefix]` or an absolute folder."""

    s3_endpoint: str | None = Field(None, validation_alias="AWS_ENDPOINT_URL")
    """S3 server, unless it is Amazon's."""

    s3_region: str | None = Field(None, validation_alias="AWS_REGION")
    """Region that requests to the S3 server are signed for."""

    s3_credentials: Path | None = Field(None, validation_alias="AWS_SHARED_CREDENTIALS_FILE")
    """File with the account for the S3 server; boto3 and pyarrow read it by themselves."""

    ca_bundle: Path | None = Field(None, validation_alias="SSL_CERT_FILE")
    """File with certificates that HTTPS clients of this process trust; None for the usual ones."""

    job_id: str | None = Field(None, validation_alias="MLPLATFORM_JOB_ID")
    """Submission id of the job that this process belongs to; None outside of jobs."""

    attempt: int = Field(1, ge=1, validation_alias="MLPLATFORM_ATTEMPT")
    """Number of this start of the job, from 1."""

    grace_s: float | None = Field(None, gt=0, validation_alias="MLPLATFORM_GRACE_SECONDS")
    """Time that this job gets to save its state when it is asked to leave; None if it is never asked."""

    idle_s: float = Field(7200, ge=0, validation_alias="DEV_IDLE_SECONDS")
    """Time after which a dev environment that nobody uses ends; 0 for never."""

    user: str = Field(default_factory=getpass.getuser, validation_alias="MLPLATFORM_USER")
    """User on whose behalf jobs are submitted."""

    image: str | None = Field(None, validation_alias="MLPLATFORM_IMAGE")
    """Container image of this process, recorded with each run; None on the embedded platform."""

    git_commit: str | None = Field(None, validation_alias="MLPLATFORM_GIT_COMMIT")
    """Commit of the submitted folder; None if it was not under git."""

    git_diff: str | None = Field(None, validation_alias="MLPLATFORM_GIT_DIFF")
    """Changes of the submitted folder since its commit, packed by `contract.pack`; None for a clean tree."""

    entrypoint: str | None = Field(None, validation_alias="MLPLATFORM_ENTRYPOINT")
    """The job's command as it was submitted; None if it was not recorded."""

    note: str | None = Field(None, validation_alias="MLPLATFORM_NOTE")
    """The submitter's note on the job, shown with its run."""

    driver_label: str | None = Field(None, validation_alias="MLPLATFORM_DRIVER_LABEL", pattern=r"^[^=]+=[^=]+$")
    """`key=value` of the nodes that run entry points (the stack: role=worker); None means any node."""

    home: Path = Field(Path("~/.local/share/mlplatform"), validation_alias="MLPLATFORM_HOME")
    """Folder of the embedded platform."""

    shared: Path | None = Field(None, validation_alias="MLPLATFORM_SHARED")
    """Folder that all nodes share; None means `shared` below `home`."""

    @field_validator("ray_address")
    @classmethod
    def _one_line(cls, value: str) -> str:
        """Drop the newline of an address that a shell read from a file; httpx rejects it with a traceback."""
        value = value.strip()
        if not value.isprintable():
            raise ValueError("use an address without control characters")
        return value

    @field_validator("home")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @model_validator(mode="before")
    @classmethod
    def _identity_of_ray(cls, values: Any) -> Any:
        """Fill in the job's identity from Ray's job metadata, unless a variable sets it.

        Ray puts the job's configuration into every driver's environment as JSON
        (`ray_core.JOB_CONFIG`); its workers have it in their own context.
        """
        config = json.loads(os.environ.get(ray_core.JOB_CONFIG) or "{}")
        metadata = config.get("metadata") or ray_core.job_metadata()
        for field, variable, key in (
            ("job_id", "MLPLATFORM_JOB_ID", "job_submission_id"),
            ("user", "MLPLATFORM_USER", "user"),
            ("git_commit", "MLPLATFORM_GIT_COMMIT", "git_commit"),
            ("git_diff", "MLPLATFORM_GIT_DIFF", "git_diff"),
            ("entrypoint", "MLPLATFORM_ENTRYPOINT", "entrypoint"),
            ("note", "MLPLATFORM_NOTE", "note"),
        ):
            if metadata.get(key) and not values.get(variable) and not values.get(field):
                values[variable] = metadata[key]
        return values

    @model_validator(mode="before")
    @classmethod
    def _gateway_of_node(cls, values: Any) -> Any:
        """Use the gateway that the nodes name: in a driver, RAY_ADDRESS is the cluster's own, in a worker unset."""
        gateway = values.get("gateway") or values.get(secret_folder.GATEWAY)
        if gateway and not str(values.get("RAY_ADDRESS") or "").startswith(HTTP):
            values["RAY_ADDRESS"] = gateway
        return values

    @property
    def token_file(self) -> Path | None:
        """The file with the token for `ray_address`: without a setting, Ray's default file if it exists."""
        return self.ray_auth_token_path or (default_token_file() if default_token_file().is_file() else None)

    @property
    def own_token(self) -> str | None:
        """The attempt's token, if `ray_address` is the gateway that has issued it."""
        return self.attempt_token if self.gateway and _same(self.ray_address, self.gateway) else None

    @property
    def driver_labels(self) -> dict[str, str]:
        """The label that entry points need, as a Ray label selector; empty if any node is accepted."""
        return label_selector(self.driver_label)

    @property
    def shared_folder(self) -> Path:
        """The folder that all nodes share."""
        return self.shared or self.home / "shared"

    @property
    def names_user(self) -> bool:
        """True if the environment or the job names the user; otherwise `user` is this process's account."""
        return "user" in self.model_fields_set

    def page_of(self, tracking_uri: str) -> str:
        """Return the address at which a browser reaches an MLflow server: for the platform's own, `tracking_page`."""
        return self.tracking_page if self.tracking_page and self.is_own(tracking_uri) else tracking_uri.rstrip("/")

    def is_own(self, tracking_uri: str) -> bool:
        """Return whether an address is that of the platform's own MLflow."""
        own = self.platform_tracking_uri or self.tracking_uri
        return own is not None and _same(tracking_uri, own)

    def addresses(self) -> str:
        """Return two lines for people: where MLflow and Ray are, and which files have what they ask for."""
        return (
            f"MLflow: {self.tracking_uri} (any user name, password: {self.tracking_password_file})\n"
            f"Ray:    {self.ray_address} (token: {self.ray_auth_token_path})"
        )

    def environment(self) -> dict[str, str]:
        """Return the variables that give these settings to another process, a shell or a laptop."""
        values = {
            str(field.validation_alias): getattr(self, name)
            for name, field in type(self).model_fields.items()
            if name not in _OF_ONE_PROCESS
        }
        if self.ray_auth_token_path:
            values["RAY_AUTH_MODE"] = "token"
        if self.tracking_password_file and self.tracking_password_file.is_file():
            # The plugin keeps MLflow's client from sending the password to other servers.
            values["MLFLOW_TRACKING_AUTH"] = "mlplatform"
            values["MLFLOW_TRACKING_USERNAME"] = LOCAL_USER
            values["MLFLOW_TRACKING_PASSWORD"] = self.tracking_password_file.read_text()
        values |= proxies.bypass()
        return {variable: str(value) for variable, value in values.items() if value is not None}


class NodeSettings(EnvironmentSettings):
    """Settings that `ray start` reads on a node."""

    warm_start: bool = Field(True, validation_alias="MLPLATFORM_WARM_START")
    """Fork drivers and workers from templates; a job may set the variable to 0 for itself."""

    environments_gb: float = Field(10, gt=0, validation_alias="RAY_RUNTIME_ENV_UV_CACHE_SIZE_GB")
    """Bound on the environments of locked projects: Ray's own for those of its lists of uv packages."""


def _same(address: str, other: str) -> bool:
    return address.rstrip("/") == other.rstrip("/")


def default_token_file() -> Path:
    """Return the file that Ray's clients read without a setting (`ray/_private/authentication` of Ray 2.60)."""
    return Path.home() / ".ray" / "auth_token"


def aws_credentials_file() -> Path:
    """Return the file with accounts that AWS clients read without a setting."""
    return Path.home() / ".aws" / "credentials"


def aws_config_file() -> Path:
    """Return the file beside it with addresses and regions."""
    return Path.home() / ".aws" / "config"


def mlflow_credentials_file() -> Path:
    """Return the one file in which MLflow's client looks for an account (`mlflow.utils.credentials` of MLflow 3.17)."""
    return Path.home() / ".mlflow" / "credentials"


@cache
def settings() -> Settings:
    """Return the settings of this process, read once."""
    return Settings.load()
