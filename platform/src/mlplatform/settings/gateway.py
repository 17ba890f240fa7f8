"""Settings of the gateway and of the log shipper."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from mlplatform.errors import SettingsError
from mlplatform.settings.load import EnvironmentSettings, label_selector


class GatewaySettings(EnvironmentSettings):
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
        return label_selector(self.driver_label)

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
