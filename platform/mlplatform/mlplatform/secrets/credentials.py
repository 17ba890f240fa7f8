"""Credential files of MLflow, S3 and the gateway, each in the format that its program reads."""

from __future__ import annotations

import base64
import configparser
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from mlplatform.errors import SettingsError

if TYPE_CHECKING:
    import httpx


def write_mlflow_account(user: str, known: str, path: Path) -> None:
    """Write the file that MLflow's client reads its account from (`~/.mlflow/credentials`)."""
    path.write_text(f"[mlflow]\nmlflow_tracking_username = {user}\nmlflow_tracking_password = {known}\n")


def read_mlflow_account(path: Path) -> tuple[str, str]:
    """Read user and password from a file of `write_mlflow_account`."""
    section = read_ini(path)["mlflow"]
    return section["mlflow_tracking_username"], section["mlflow_tracking_password"]


def read_s3_account(path: Path) -> tuple[str, str]:
    """Read access key and secret key from an AWS credentials file.

    Raises:
        SettingsError: the file is missing, or nobody has filled it in.
    """
    try:
        section = read_ini(path)["default"]
        key, secret = section["aws_access_key_id"], section["aws_secret_access_key"]
    except (KeyError, configparser.Error):
        key = secret = ""
    if not key or not secret:
        raise SettingsError(
            f"{path.parent.name}/{path.name} has no account at the S3 server: write aws_access_key_id and "
            "aws_secret_access_key below a line [default] into it."
        )
    return key, secret


def fernet_key(path: Path) -> None:
    """Write a key for `cryptography.fernet`, with which MLflow and the gateway encrypt secrets in databases."""
    path.write_text(base64.urlsafe_b64encode(secrets.token_bytes(32)).decode())


class TokenFile:
    """A token in a file, which is read again when it changes, so that a rotation needs no restart.

    While the file is missing or empty, for example in the middle of a rotation, the last token applies.

    Args:
        path: the file.
        variable: the variable that names the file, for error messages.
    """

    def __init__(self, path: Path, variable: str = "RAY_AUTH_TOKEN_PATH") -> None:
        self._path = path
        self._variable = variable
        self._token = ""
        self._seen: tuple[int, int, int] | None = None

    def read(self) -> str:
        """Return the token.

        Raises:
            SettingsError: the file has never held a token.
        """
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen != self._seen:
                self._token = self._path.read_text().strip() or self._token
                self._seen = seen
        except OSError as error:
            if not self._token:
                raise SettingsError(
                    f"{self._variable}={str(self._path)!r} cannot be read ({error.strerror}); "
                    "set it to the file with the token."
                ) from error
        if not self._token:
            raise SettingsError(f"{self._variable}={str(self._path)!r} is empty; run `make env` for a token.")
        return self._token

    def sign(self, request: httpx.Request) -> httpx.Request:
        """Add the token to a request; the `auth` argument of an httpx client accepts this method.

        Raises:
            SettingsError: the file has never held a token.
        """
        request.headers["Authorization"] = f"Bearer {self.read()}"
        return request


def read_ini(path: Path) -> configparser.ConfigParser:
    """Read a file of secrets with sections.

    Raises:
        SettingsError: it does not exist.
    """
    config = configparser.ConfigParser(interpolation=None)
    if not config.read(path):
        raise SettingsError(f"There is no secret {path}; run `make env` to generate missing secrets.")
    return config
