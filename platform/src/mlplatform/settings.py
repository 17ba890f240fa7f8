"""Every setting of the platform, and the only module that reads the environment.

`Settings` is what a job, a notebook or a laptop needs to reach a platform; containers of the stack and
the embedded platform carry it as environment variables, so user code sets nothing. `StackSettings` is
what the host's `.env` says about the stack itself; `.env.example` explains each variable.
"""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from mlplatform import ray_context
from mlplatform.errors import SettingsError

LOOPBACK = "127.0.0.1"
OPEN_RUN = "MLPLATFORM_OPEN_RUN"
"""Variable by which a process tells its children that it holds the job's run open, and which run that is."""

_DEFAULTS = "MLPLATFORM_DEFAULTS"
"""Variable by which a process tells itself and its children which variables it has set for libraries, and to what."""

_RAY_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"

_Model = TypeVar("_Model", bound=BaseSettings)

_JOB = {"job_id", "attempt", "user", "git_commit", "git_diff", "entrypoint", "note"}
_OF_ONE_PROCESS = _JOB | {"image", "mlflow_key_file", "mlflow_webhook_key_file"}
"""Settings that say what a process is, and so are not brought to another one."""


class _Loaded(BaseSettings):
    """Settings that come from the environment."""

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the environment; `overrides` are fields by name.

        Raises:
            SettingsError: a variable has a value that is not valid; all of them are named at once.
        """
        return _load(cls, overrides)


class Settings(_Loaded):
    """Addresses, paths and identity of the process at hand; secrets stay in the files that the paths name."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, env_ignore_empty=True)

    tracking_uri: str | None = Field(None, validation_alias="MLFLOW_TRACKING_URI")
    """MLflow server; None means that nothing is tracked (a stack started with ONLY=ray)."""

    platform_tracking_uri: str | None = Field(None, validation_alias="MLPLATFORM_TRACKING_URI")
    """The platform's own MLflow, whatever a job sets `tracking_uri` to; its account is sent nowhere else."""

    tracking_page: str | None = Field(None, validation_alias="MLPLATFORM_TRACKING_PAGE")
    """Where a browser finds MLflow, when that is another address than the one for programs."""

    ray_address: str = Field("http://127.0.0.1:8265", validation_alias="RAY_ADDRESS")
    """Ray's Jobs API."""

    ray_auth_token_path: Path | None = Field(None, validation_alias="RAY_AUTH_TOKEN_PATH")
    """File that holds the token for `ray_address`."""

    storage: str = Field("s3://ray", validation_alias="MLPLATFORM_STORAGE")
    """Where checkpoints go: `s3://bucket[/prefix]` or an absolute folder; a job adds its id."""

    datasets: str = Field("s3://datasets", validation_alias="MLPLATFORM_DATASETS")
    """Where data sets lie: `s3://bucket[/prefix]` or an absolute folder."""

    s3_endpoint: str | None = Field(None, validation_alias="AWS_ENDPOINT_URL")
    """S3 server when it is not Amazon's."""

    s3_region: str | None = Field(None, validation_alias="AWS_REGION")
    """Region that requests to the S3 server are signed for."""

    s3_credentials: Path | None = Field(None, validation_alias="AWS_SHARED_CREDENTIALS_FILE")
    """File with the account for the S3 server; boto3 and pyarrow read it by themselves."""

    job_id: str | None = Field(None, validation_alias="MLPLATFORM_JOB_ID")
    """Submission id of the job that this process belongs to; None outside of jobs."""

    attempt: int = Field(1, ge=1, validation_alias="MLPLATFORM_ATTEMPT")
    """Which start of the job this is, from 1."""

    user: str = Field(default_factory=getpass.getuser, validation_alias="MLPLATFORM_USER")
    """Person on whose behalf jobs are submitted."""

    image: str | None = Field(None, validation_alias="MLPLATFORM_IMAGE")
    """Container image of this process, recorded with each run; None on the embedded platform."""

    git_commit: str | None = Field(None, validation_alias="MLPLATFORM_GIT_COMMIT")
    """Commit of the submitted folder; None where it was not under git."""

    git_diff: str | None = Field(None, validation_alias="MLPLATFORM_GIT_DIFF")
    """What the submitted folder had beside its commit, packed by `source.pack`; None for a clean tree."""

    entrypoint: str | None = Field(None, validation_alias="MLPLATFORM_ENTRYPOINT")
    """The job's command as it was submitted; None where nothing has recorded it."""

    note: str | None = Field(None, validation_alias="MLPLATFORM_NOTE")
    """What its submitter says about the job; shown with its run."""

    driver_label: str | None = Field(None, validation_alias="MLPLATFORM_DRIVER_LABEL", pattern=r"^[^=]+=[^=]+$")
    """`key=value` of the nodes that run entry points (the stack: role=worker); None means any node."""

    home: Path = Field(Path("~/.local/share/mlplatform"), validation_alias="MLPLATFORM_HOME")
    """Folder of the embedded platform."""

    shared: Path | None = Field(None, validation_alias="MLPLATFORM_SHARED")
    """Folder that all nodes share; None means `shared` below `home`."""

    mlflow_key_file: Path = Field(Path("/run/secrets/mlflow_flask_key"), validation_alias="MLPLATFORM_MLFLOW_KEY_FILE")
    """File with the key that signs the MLflow server's forms; read in the server's container only."""

    mlflow_webhook_key_file: Path = Field(
        Path("/run/secrets/mlflow_webhook_key"), validation_alias="MLPLATFORM_MLFLOW_WEBHOOK_KEY_FILE"
    )
    """File with the key that encrypts the webhooks' secrets in MLflow's database; read in the same place only."""

    @field_validator("home")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @model_validator(mode="before")
    @classmethod
    def _identity_of_ray(cls, values: Any) -> Any:
        """Take what was recorded when the job was submitted from Ray's own job metadata where nothing else has set it.

        Ray puts the job's configuration into every driver's environment as JSON
        (`ray._private.ray_constants.RAY_JOB_CONFIG_JSON_ENV_VAR`); its workers have it from their own context.
        """
        config = json.loads(os.environ.get(_RAY_JOB_CONFIG) or "{}")
        metadata = config.get("metadata") or ray_context.job_metadata()
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

    @property
    def driver_labels(self) -> dict[str, str]:
        """The label that entry points need, as Ray's label selectors have it; empty where any node will do."""
        return _selector(self.driver_label)

    @property
    def shared_folder(self) -> Path:
        """The folder that all nodes share."""
        return self.shared or self.home / "shared"

    def environment(self) -> dict[str, str]:
        """The variables that bring these settings to another process, a shell or a laptop."""
        values = {
            str(field.validation_alias): getattr(self, name)
            for name, field in type(self).model_fields.items()
            if name not in _OF_ONE_PROCESS
        }
        if self.ray_auth_token_path:
            values["RAY_AUTH_MODE"] = "token"
        return {variable: str(value) for variable, value in values.items() if value is not None}


class GatewaySettings(_Loaded):
    """What the gateway's and the log carrier's containers are told; secrets stay in the files that the paths name."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, env_ignore_empty=True)

    listen: str = Field("0.0.0.0", validation_alias="MLPLATFORM_GATEWAY_LISTEN")  # noqa: S104 - of a container
    port: int = Field(8265, ge=1, le=65535, validation_alias="MLPLATFORM_GATEWAY_PORT")

    gateway: str = Field("http://gateway:8265", validation_alias="MLPLATFORM_GATEWAY")
    """Where the log carrier finds the gateway."""

    node_logs: Path = Field(Path("/logs"), validation_alias="MLPLATFORM_NODE_LOGS")
    """Folder with a folder for each node, its /tmp/ray; read by the log carrier."""

    head: str = Field("http://ray-head:8265", validation_alias="MLPLATFORM_HEAD")
    """Dashboard of Ray's head."""

    head_agent: str = Field("http://ray-head:52365", validation_alias="MLPLATFORM_HEAD_AGENT")
    """Agent of the head's node, which looks after jobs once it was asked for one."""

    token_path: Path = Field(Path("/run/secrets/ray_token"), validation_alias="RAY_AUTH_TOKEN_PATH")
    """File with the token that clients send, and that the head wants."""

    database: str = Field("postgresql+psycopg2:///gateway?service=gateway", validation_alias="MLPLATFORM_DATABASE")
    """SQLAlchemy's address; libpq takes host and password from the file of PGSERVICEFILE."""

    files: str = Field("s3://jobs", validation_alias="MLPLATFORM_GATEWAY_STORE")
    """Where packages and logs go: `s3://bucket[/prefix]` or an absolute folder."""

    s3_endpoint: str | None = Field(None, validation_alias="AWS_ENDPOINT_URL")
    tracking_uri: str | None = Field(None, validation_alias="MLFLOW_TRACKING_URI")

    tracking_account: Path = Field(Path("/run/secrets/mlflow_gateway"), validation_alias="MLPLATFORM_TRACKING_ACCOUNT")
    """File with MLflow's user and password."""

    driver_label: str | None = Field(None, validation_alias="MLPLATFORM_DRIVER_LABEL", pattern=r"^[^=]+=[^=]+$")
    """`key=value` of the nodes that run entry points."""

    starts: int = Field(4, ge=1, validation_alias="MLPLATFORM_STARTS")
    """How many jobs start at the same time; each costs seconds of a core."""

    package_bytes: int = Field(100 << 20, ge=1, le=100 << 20, validation_alias="MLPLATFORM_PACKAGE_BYTES")
    """The largest package that may be uploaded."""

    @property
    def driver_labels(self) -> dict[str, str]:
        """As `Settings.driver_labels`."""
        return _selector(self.driver_label)

    def token(self) -> str:
        """The token itself.

        Raises:
            SettingsError: its file cannot be read, or is empty.
        """
        try:
            token = self.token_path.read_text().strip()
        except OSError as error:
            raise SettingsError(
                f"RAY_AUTH_TOKEN_PATH={str(self.token_path)!r} cannot be read ({error.strerror}); let it name the file."
            ) from error
        if not token:
            raise SettingsError(f"RAY_AUTH_TOKEN_PATH={str(self.token_path)!r} is empty; run `make env` for a token.")
        return token

    def servers(self) -> dict[str, str]:
        """What jobs stand on beside Ray, by the name that people know."""
        known = {"the object storage": self.s3_endpoint, "MLflow": self.tracking_uri}
        return {name: address for name, address in known.items() if address}


class StackSettings(BaseSettings):
    """What `.env` says about the stack on this host."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, env_ignore_empty=True)

    version: str = Field(validation_alias="MLPLATFORM_VERSION")
    """Tag of the images that we build."""

    accelerator: Literal["cpu", "cuda", "rocm"] = Field("cpu", validation_alias="ACCELERATOR")
    """Picks the workers' devices and the exporters."""

    worker_layout: Literal["host", "gpu", "generated"] = Field("gpu", validation_alias="WORKER_LAYOUT")
    """One worker with everything, two with a GPU each, or the generated file for other counts."""

    prefix: str = Field("", validation_alias="STACK_PREFIX", pattern=r"^([a-z0-9][a-z0-9_.-]*)?$")
    """Put before every container, so that two stacks fit on a host."""

    food11_volume: str = Field("food11", validation_alias="FOOD11_VOLUME")
    """Docker volume with the photos of Food-11, which stacks of a host may share."""

    bind_address: str = Field("127.0.0.1", validation_alias="BIND_ADDRESS")
    """Address that the ports are published on."""

    profiles: str = Field("", validation_alias="COMPOSE_PROFILES")
    """Optional services, comma-separated."""

    disk_needed: int = Field(20, ge=0, validation_alias="DISK_NEEDED_GB")
    """Free space on Docker's disk, in GB, under which the stack is not started."""

    mlflow_port: int = Field(8000, ge=1, le=65535, validation_alias="MLFLOW_PORT")
    minio_port: int = Field(9000, ge=1, le=65535, validation_alias="MINIO_PORT")
    minio_console_port: int = Field(9001, ge=1, le=65535, validation_alias="MINIO_CONSOLE_PORT")
    ray_port: int = Field(8265, ge=1, le=65535, validation_alias="RAY_PORT")
    notebook_port: int = Field(8888, ge=1, le=65535, validation_alias="NOTEBOOK_PORT")
    prometheus_port: int = Field(9090, ge=1, le=65535, validation_alias="PROMETHEUS_PORT")
    grafana_port: int = Field(3000, ge=1, le=65535, validation_alias="GRAFANA_PORT")

    @field_validator("bind_address")
    @classmethod
    def _only_loopback(cls, value: str) -> str:
        if value != LOOPBACK:
            raise ValueError(
                "the stack listens on loopback only, because its pages speak plain HTTP; keep 127.0.0.1 and reach it "
                "with the `ssh -L` line that `make status` prints"
            )
        return value

    @classmethod
    def load(cls, env_file: Path, **overrides: Any) -> Self:
        """Read `env_file`; variables of the environment win over it, as they do in Compose.

        Raises:
            SettingsError: the file is missing, or a variable has a value that is not valid.
        """
        if not env_file.is_file():
            raise SettingsError(f"There is no {env_file}; run `make env` to write it.")
        return _load(cls, {"_env_file": env_file, **overrides})


@cache
def settings() -> Settings:
    """The settings of this process, read once."""
    return Settings.load()


def environment() -> Mapping[str, str]:
    """The environment of this process, for the ones that are started from it."""
    return dict(os.environ)


def provide_secret(variable: str, file: Path) -> None:
    """Set a variable of this process from a file, for a library that takes a secret from nowhere else."""
    os.environ[variable] = file.read_text().strip()


@contextmanager
def changed_environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables, or remove those that are None; at the end all of them are as before, whatever was done to them."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _change(variables)
        yield
    finally:
        _change(before)


def open_run() -> str | None:
    """The run that a parent process of this one holds open; read anew, because it comes and goes."""
    return os.environ.get(OPEN_RUN)


def launcher_ranks() -> tuple[int, int]:
    """Rank and local rank that torchrun, Lightning or SLURM has given this process; 0 and 0 outside of them.

    Read anew, because Lightning sets them in a process that is already running.
    """
    node, local = _number("NODE_RANK", "GROUP_RANK"), _number("LOCAL_RANK")
    rank = _number("RANK")
    if rank is None and local is not None:
        rank = (node or 0) * (_number("LOCAL_WORLD_SIZE") or 1) + local if node else local
    # Under Ray, SLURM's variables are those of the process that started the node: every job there would inherit them.
    if rank is None and _RAY_JOB_CONFIG not in os.environ and not ray_context.is_worker():
        rank, local = _number("SLURM_PROCID"), _number("SLURM_LOCALID")
    return rank or 0, local or 0


def set_environment(variables: Mapping[str, str]) -> None:
    """Set variables for the rest of this process, as the process has them that has started it."""
    os.environ.update(variables)


def set_default_environment(variables: Mapping[str, str]) -> None:
    """Set variables that a library reads only from the environment, where the user has not set them.

    What an earlier call has set, also one of a parent process, is not the user's: it is replaced.
    """
    ours = json.loads(os.environ.get(_DEFAULTS) or "{}")
    new = {name: value for name, value in variables.items() if os.environ.get(name) in (None, ours.get(name))}
    os.environ.update({**new, _DEFAULTS: json.dumps({**ours, **new})})


def _selector(label: str | None) -> dict[str, str]:
    key, _, value = (label or "").partition("=")
    return {key: value} if key else {}


def _change(variables: Mapping[str, str | None]) -> None:
    for variable, value in variables.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value


def _number(*variables: str) -> int | None:
    """The first of the variables that holds a number."""
    return next((int(value) for name in variables if (value := os.environ.get(name, "")).isdecimal()), None)


def _load(model: type[_Model], values: dict[str, Any]) -> _Model:
    # Overrides come by field name but are passed by variable: if the model knew its fields by name too, it would also
    # read HOME and USER from the environment for `home` and `user`.
    fields = model.model_fields
    named = {str(fields[name].validation_alias) if name in fields else name: value for name, value in values.items()}
    try:
        return model(**named)
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(str, problem['loc'])) or 'The settings'}={problem['input']!r}: {problem['msg']}"
            for problem in error.errors()
        )
        raise SettingsError("\n".join(problems)) from error
