"""All settings of `.env`, with the checks of one by another, and those of the one-shot services and of backups."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from mlplatform.errors import SettingsError
from mlplatform.settings.load import EnvironmentSettings, load_settings
from mlplatform.settings.services import Backups, Jobs, Messages, ObjectStore, Ports, Space
from mlplatform_stack.sections import LOOPBACK, Addresses, Hardware, Images, Names, Services

PROXY = "proxy"
"""Profile of the TLS entrance."""


# The sections of `.env.example`, from its last one to its first: pydantic begins with the fields of the last base.
class StackSettings(Images, Ports, Addresses, Space, ObjectStore, Backups, Messages, Jobs, Services, Hardware, Names):
    """Settings of the stack on this host, from its `.env`."""

    @classmethod
    def of_host(cls) -> frozenset[str]:
        """Return the variables that belong to a host, which a restore keeps; all others belong to the stack."""
        fields = cls.model_fields.values()
        return frozenset(
            str(field.validation_alias) for field in fields if field.json_schema_extra == {"of_host": True}
        )

    @property
    def has_proxy(self) -> bool:
        """True if the TLS entrance is one of the services."""
        return PROXY in self.compose_profiles.split(",")

    @field_validator("bind_address")
    @classmethod
    def _plain_on_loopback_only(cls, value: str, info: ValidationInfo) -> str:
        if PROXY not in info.data.get("compose_profiles", "").split(","):
            if value == LOOPBACK:
                return value
            raise ValueError(
                "without TLS the stack listens on loopback only; add proxy to COMPOSE_PROFILES, or keep 127.0.0.1 and "
                "reach it with the `ssh -L` line that `make status` prints"
            )
        try:
            usable = not IPv4Address(value).is_unspecified and value != LOOPBACK
        except ValueError:
            usable = False
        if not usable:
            raise ValueError(
                "the profile proxy needs one IPv4 address of this host, because services have the same ports on "
                "127.0.0.1; use 127.0.0.2 for this host alone"
            )
        return value

    @field_validator("s3_endpoint_url")
    @classmethod
    def _reachable_from_containers(cls, value: str) -> str:
        if urlsplit(value).hostname in ("localhost", LOOPBACK, "::1"):
            raise ValueError("containers cannot reach a server on this host's loopback; use another address of it")
        return value

    @field_validator("acme_email")
    @classmethod
    def _domain_for_acme(cls, value: str, info: ValidationInfo) -> str:
        if value and not info.data.get("domain"):
            raise ValueError("certificates by ACME are for names; set DOMAIN to this host's")
        return value

    @classmethod
    def load(cls, env_file: Path, **overrides: Any) -> Self:
        """Read `env_file`; variables of the environment take precedence, of which commands leave out those of shells.

        Raises:
            SettingsError: the file is missing, or a variable has an invalid value.
        """
        if not env_file.is_file():
            raise SettingsError(f"There is no {env_file}; run `make env` to write it.")
        return load_settings(cls, {"_env_file": env_file, **overrides})


class StorageSettings(ObjectStore, EnvironmentSettings):
    """Settings of the services `storage-init`, `backup` and `restore`."""

    endpoint: str = Field(validation_alias="AWS_ENDPOINT_URL")
    """Address of the object store, be it the stack's own or S3_ENDPOINT_URL."""


class BackupSettings(Backups, EnvironmentSettings):
    """Settings of the services `backup` and `backup-timer`."""
