"""Accounts and switches of other libraries, from a job's own environment.

Unlike `job.settings()`, these are not cached: a program may set the variables while it runs, so each reader loads them
when it needs them. The names are those of the libraries; the platform adds none of its own.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from mlplatform.contract import PERSON_TOKEN
from mlplatform.settings.load import EnvironmentSettings

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
"""Booleans as MLflow reads them (`mlflow.environment_variables._BooleanEnvironmentVariable` of 3.17)."""


class TrackingAccount(EnvironmentSettings):
    """The account at MLflow, or at Databricks, that this process has in its environment."""

    username: str | None = Field(None, validation_alias="MLFLOW_TRACKING_USERNAME")
    password: str | None = Field(None, validation_alias="MLFLOW_TRACKING_PASSWORD", repr=False)

    token: str | None = Field(None, validation_alias="MLFLOW_TRACKING_TOKEN", repr=False)
    """Bearer token; MLflow uses it only without user and password."""

    insecure_tls: bool = Field(False, validation_alias="MLFLOW_TRACKING_INSECURE_TLS")
    """Accept any certificate."""

    server_certificate: Path | None = Field(None, validation_alias="MLFLOW_TRACKING_SERVER_CERT_PATH")
    """File with the certificate authority of the server."""

    requests_ca_bundle: Path | None = Field(None, validation_alias="REQUESTS_CA_BUNDLE")
    """File with the certificate authorities for every server; MLflow's client reads it, because it uses `requests`."""

    auth_provider: str | None = Field(None, validation_alias="MLFLOW_TRACKING_AUTH")
    """Plugin that signs the requests of MLflow's client; `mlplatform` on the platform's nodes."""

    aws_sigv4: bool = Field(False, validation_alias="MLFLOW_TRACKING_AWS_SIGV4")
    """True if requests of MLflow's client are signed for Amazon."""

    databricks_host: str | None = Field(None, validation_alias="DATABRICKS_HOST")

    databricks_config: Path = Field(Path("~/.databrickscfg"), validation_alias="DATABRICKS_CONFIG_FILE")
    """File that `databricks configure` writes."""

    @field_validator("insecure_tls", "aws_sigv4", mode="before")
    @classmethod
    def _as_mlflow_reads_it(cls, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() not in _BOOLEANS:
            raise ValueError("use true, false, 1 or 0")
        return _BOOLEANS[str(value).lower()]

    @field_validator("databricks_config")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser()

    @property
    def login(self) -> tuple[str, str] | None:
        """User and password; None unless both are set."""
        return (self.username, self.password) if self.username and self.password else None

    def at(self, server: str, platform: str | None) -> TrackingAccount:
        """Return this account without what is not for a server.

        A password in the form of a token, as the embedded platform's, is for the platform's server only; elsewhere, the
        job's own bearer token counts.

        Args:
            server: address of the server, or of a request to it.
            platform: address of the platform's own server; None if unknown, which removes nothing.
        """
        issued = self.password is not None and PERSON_TOKEN.fullmatch(self.password)
        if not issued or platform is None or f"{server.rstrip('/')}/".startswith(f"{platform.rstrip('/')}/"):
            return self
        return self.model_copy(update={"username": None, "password": None})

    @property
    def certificate_authority(self) -> Path | None:
        """File with the certificate authority to verify the server with; None means the default ones."""
        return self.server_certificate or self.requests_ca_bundle

    @property
    def is_signed_by_a_plugin(self) -> bool:
        """Return whether only MLflow's client can authenticate, because another plugin signs its requests."""
        return self.aws_sigv4 or self.auth_provider not in (None, "mlplatform")

    def environment(self) -> dict[str, str]:
        """The variables of MLflow that are set, for a process to which Ray does not pass them by itself."""
        values = {
            "MLFLOW_TRACKING_USERNAME": self.username,
            "MLFLOW_TRACKING_PASSWORD": self.password,
            "MLFLOW_TRACKING_TOKEN": self.token,
            "MLFLOW_TRACKING_INSECURE_TLS": "true" if self.insecure_tls else None,
            "MLFLOW_TRACKING_SERVER_CERT_PATH": self.server_certificate,
        }
        return {variable: str(value) for variable, value in values.items() if value is not None}


class OtherTrackers(EnvironmentSettings):
    """Switches and keys of Weights & Biases and Comet that take precedence over the platform's defaults."""

    wandb_mode: str | None = Field(None, validation_alias="WANDB_MODE")
    """`online`, `offline` or another mode of W&B; None lets the key decide."""

    wandb_api_key: str | None = Field(None, validation_alias="WANDB_API_KEY", repr=False)

    wandb_identity_token: Path | None = Field(None, validation_alias="WANDB_IDENTITY_TOKEN_FILE")
    """File with a token that W&B exchanges for a key."""

    wandb_server: str | None = Field(None, validation_alias="WANDB_BASE_URL")
    """W&B server, if it is not the public one."""

    comet_online: bool | None = Field(None, validation_alias="COMET_START_ONLINE")
    """Switch for sending to Comet's server; None lets the key decide."""
