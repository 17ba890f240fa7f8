"""Settings of the gateway and of the log shipper."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field

from mlplatform.settings.job import Settings
from mlplatform.settings.load import EnvironmentSettings, label_selector
from mlplatform.settings.services import OfGateway


class Tool(BaseModel):
    """A page of the stack besides the gateway's own."""

    title: str

    name: str = ""
    """Its name beside that of the gateway's page, `ray`, below `localhost` and DOMAIN; empty for none."""

    profile: str
    """Profile of the compose files with which it is started; empty if it always is."""

    port: int = Field(ge=1, le=65535)
    """Port on the host."""

    health: str
    """URL at which the gateway checks the service; any HTTP status except 502, 503 and 504 means available."""


class GatewaySettings(OfGateway, EnvironmentSettings):
    """Settings of the gateway's and the log shipper's containers; secrets stay in the files that the paths name.

    Those of `.env` are inherited. What stands here, the compose files and the embedded platform set.
    """

    listen: str = Field("0.0.0.0", validation_alias="MLPLATFORM_GATEWAY_LISTEN")  # noqa: S104 - of a container
    port: int = Field(8265, ge=1, le=65535, validation_alias="MLPLATFORM_GATEWAY_PORT")

    gateway: str = Field("http://gateway:8265", validation_alias="MLPLATFORM_GATEWAY")
    """Address of the gateway, for the log shipper and for jobs."""

    node_logs: Path = Field(Path("/logs"), validation_alias="MLPLATFORM_NODE_LOGS")
    """Folder with one folder per node, the node's /tmp/ray, for the log shipper."""

    heartbeat: Path | None = Field(None, validation_alias="MLPLATFORM_SHIPPER_HEARTBEAT")
    """File that the log shipper touches after each pass that the gateway accepted, for its health check."""

    proxy: str | None = Field(None, validation_alias="MLPLATFORM_GATEWAY_PROXY")
    """Host name of the reverse proxy whose headers name the client's address and scheme; None for none."""

    head: str = Field("http://ray-head:8265", validation_alias="MLPLATFORM_GATEWAY_HEAD")
    """Address of the Ray head's dashboard."""

    head_agent: str = Field("http://ray-head:52365", validation_alias="MLPLATFORM_GATEWAY_HEAD_AGENT")
    """Address of the agent on the head's node, which monitors jobs after the first request for one."""

    token_path: Path = Field(Path("/run/secrets/ray_token"), validation_alias="RAY_AUTH_TOKEN_PATH")
    """File with the shared token, which clients send."""

    cluster_token_path: Path = Field(
        Path("/run/secrets/cluster_token"), validation_alias="MLPLATFORM_CLUSTER_TOKEN_PATH"
    )
    """File with the token that Ray's nodes require; it opens nothing at the gateway."""

    shipper_token_path: Path | None = Field(None, validation_alias="MLPLATFORM_SHIPPER_TOKEN_PATH")
    """File with the token that log shippers send, which the gateway then accepts for logs instead of the one that
    clients send; None for that one."""

    secrets_key_path: Path | None = Field(None, validation_alias="MLPLATFORM_SECRETS_KEY_PATH")
    """File with the key that encrypts people's secrets in the database; None stores none."""

    prometheus: str = Field("http://prometheus:9090", validation_alias="MLPLATFORM_GATEWAY_PROMETHEUS")
    """Address of Prometheus, for the queries of Ray's dashboard."""

    prometheus_password_path: Path | None = Field(None, validation_alias="MLPLATFORM_PROMETHEUS_PASSWORD_PATH")
    """File with Prometheus' password, which it also sends for the metrics: whoever has it can read them there anyway.
    None publishes no metrics, and answers no queries."""

    grafana: str = Field("http://grafana:3000", validation_alias="MLPLATFORM_GATEWAY_GRAFANA")
    """Address of Grafana, for the health check of Ray's dashboard."""

    database: str = Field(
        "postgresql+psycopg2:///gateway?service=gateway", validation_alias="MLPLATFORM_GATEWAY_DATABASE"
    )
    """SQLAlchemy URL; libpq reads host and password from the file that PGSERVICEFILE names."""

    files: str = Field("s3://jobs", validation_alias="MLPLATFORM_GATEWAY_STORE")
    """Storage of packages and logs: `s3://bucket[/prefix]` or an absolute folder."""

    object_store: str | None = Field(None, validation_alias="AWS_ENDPOINT_URL")
    """Address of the object store, be it the stack's own or S3_ENDPOINT_URL; None for folders."""

    s3_credentials: Path | None = Field(None, validation_alias="AWS_SHARED_CREDENTIALS_FILE")
    """File with the gateway's account there."""

    people_key: Path | None = Field(None, validation_alias="MLPLATFORM_GATEWAY_PEOPLE_KEY")
    """File with the account of people at a server of others; None: people get no key."""

    tracking_uri: str | None = Field(None, validation_alias="MLFLOW_TRACKING_URI")

    tracking_account: Path | None = Field(None, validation_alias="MLPLATFORM_TRACKING_ACCOUNT")
    """File with MLflow's user and password; None for those in the environment, if there are any."""

    driver_label: str | None = Field(None, validation_alias="MLPLATFORM_DRIVER_LABEL", pattern=r"^[^=]+=[^=]+$")
    """`key=value` of the nodes that run entry points."""

    mail_password_file: Path = Field(
        Path("/run/secrets/mail_password"), validation_alias="MLPLATFORM_GATEWAY_MAIL_PASSWORD_FILE"
    )
    """File with the password of MAIL_USER."""

    disks: Path | None = Field(None, validation_alias="MLPLATFORM_GATEWAY_DISKS")
    """Folder with one folder per disk that jobs write to through services; None: only that of the gateway's files."""

    backups: Path | None = Field(None, validation_alias="MLPLATFORM_GATEWAY_BACKUPS")
    """Folder with the times of backups (`contract.BACKUP_SUCCEEDED`); None for none."""

    backup_hours: float | None = Field(None, gt=0, validation_alias="MLPLATFORM_GATEWAY_BACKUP_HOURS")
    """Hours between the backups that the stack makes by itself; None if it makes none."""

    wheels: Path | None = Field(None, validation_alias="MLPLATFORM_GATEWAY_WHEELS")
    """Folder with the package as a wheel, for laptops; None for none."""

    package_bytes: int = Field(100 << 20, ge=1, le=100 << 20, validation_alias="MLPLATFORM_GATEWAY_PACKAGE_BYTES")
    """Size limit of an uploaded package, in bytes."""

    all_tools: list[Tool] | None = Field(None, validation_alias="MLPLATFORM_GATEWAY_TOOLS")
    """Pages that the front page links to, as JSON."""

    compose_profiles: str = ""
    """Profiles with which the stack was started, comma-separated; with `make up ONLY=` fewer than in `.env`."""

    @property
    def tools(self) -> list[Tool]:
        """The tools that were started."""
        profiles = ("", *self.compose_profiles.split(","))
        return [tool for tool in self.all_tools or () if tool.profile in profiles]

    @property
    def driver_labels(self) -> dict[str, str]:
        """The driver label as a label selector, as in `Settings.driver_labels`."""
        return label_selector(self.driver_label)

    def disk_folders(self) -> dict[str, Path]:
        """Return a folder on each disk that jobs write to through services, by what the disk stores."""
        if self.disks is not None:
            return {folder.name.replace("-", " "): folder for folder in sorted(self.disks.iterdir())}
        return {} if "://" in self.files else {"platform": Path(self.files)}

    def servers(self) -> dict[str, str]:
        """Return the addresses of the services that jobs depend on besides Ray, by the names used in messages."""
        known = {"the object storage": self.object_store, "MLflow": self.tracking_uri}
        return {name: address for name, address in known.items() if address}


class MlflowServerSettings(Settings):
    """Settings of the MLflow server, in whose container these files are."""

    mlflow_key_file: Path = Field(Path("/run/secrets/mlflow_key"), validation_alias="MLPLATFORM_MLFLOW_KEY_FILE")
    """File with the key that encrypts the webhooks' secrets in MLflow's database, and from which that of its forms
    follows."""

    mlflow_gateway_file: Path = Field(
        Path("/run/secrets/mlflow_gateway"), validation_alias="MLPLATFORM_MLFLOW_GATEWAY_FILE"
    )
    """File with the gateway's account at MLflow, with whose password MLflow reports changes."""
