"""A person's own secrets at the gateway; nobody reads their values there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from mlplatform.api.people import Secret, Secrets
from mlplatform.client.connection import Connection
from mlplatform.errors import SettingsError

_PATH = "/platform/secrets"


def put(link: Connection, name: str, value: bytes) -> None:
    """Set a secret, in place of one with the same name; jobs that start from now on get it."""
    link.call("PUT", f"{_PATH}/{quote(name, safe='')}", named=True, content=value)


def secrets(link: Connection) -> Sequence[Secret]:
    """Return the person's secrets by name, without their values."""
    return link.read(Secrets, "GET", _PATH).secrets


def remove(link: Connection, name: str) -> None:
    """Remove a secret."""
    link.call("DELETE", f"{_PATH}/{quote(name, safe='')}", named=True)


def content(file: Path) -> bytes:
    """Return the content of a file as the value of a secret.

    Raises:
        SettingsError: it cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(f"{file} cannot be read ({error.strerror}); name a file with the secret.") from error
