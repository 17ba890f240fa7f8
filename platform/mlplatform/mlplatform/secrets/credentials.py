"""Formats of credential files: writers and readers.

Each file has the format that its program reads, so that no password passes through a variable or a command line.
"""

from __future__ import annotations

import base64
import configparser
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from mlplatform.errors import SettingsError

if TYPE_CHECKING:
    import httpx

_PAGE_HEADERS = """\
http_server_config:
  headers:
    Content-Security-Policy: "frame-ancestors 'none'"
    X-Content-Type-Options: nosniff
    X-Frame-Options: deny
"""


def password() -> str:
    """Return 192 random bits in URL-safe characters, which need no quoting in any of the formats."""
    return secrets.token_urlsafe(24)


def mlflow_account(user: str, path: Path) -> None:
    """Write the file that MLflow's client reads its account from (`~/.mlflow/credentials`)."""
    write_mlflow_account(user, password(), path)


def write_mlflow_account(user: str, known: str, path: Path) -> None:
    """Write such a file with a password that exists."""
    path.write_text(f"[mlflow]\nmlflow_tracking_username = {user}\nmlflow_tracking_password = {known}\n")


def read_mlflow_account(path: Path) -> tuple[str, str]:
    """Read user and password from a file of `mlflow_account`."""
    section = _read_ini(path)["mlflow"]
    return section["mlflow_tracking_username"], section["mlflow_tracking_password"]


def s3_account(user: str, path: Path) -> None:
    """Write an AWS credentials file; boto3 and pyarrow find it by AWS_SHARED_CREDENTIALS_FILE."""
    path.write_text(f"[default]\naws_access_key_id = {user}\naws_secret_access_key = {password()}\n")


def read_s3_account(path: Path) -> tuple[str, str]:
    """Read access key and secret key from a file of `s3_account`.

    Raises:
        SettingsError: the file is missing, or nobody has filled it in.
    """
    try:
        section = _read_ini(path)["default"]
        key, secret = section["aws_access_key_id"], section["aws_secret_access_key"]
    except (KeyError, configparser.Error):
        key = secret = ""
    if not key or not secret:
        raise SettingsError(
            f"{path.parent.name}/{path.name} has no account at the S3 server: write aws_access_key_id and "
            "aws_secret_access_key below a line [default] into it."
        )
    return key, secret


def postgres_service(user: str, path: Path) -> None:
    """Write a libpq service file (`PGSERVICEFILE`), which holds address and account.

    Not a password file, because libpq ignores one that other users can read.
    """
    path.write_text(f"[{user}]\nhost=postgres\nport=5432\nuser={user}\npassword={password()}\n")


def read_postgres_service(path: Path) -> tuple[str, str]:
    """Read user and password from a file of `postgres_service`."""
    config = _read_ini(path)
    section = config[config.sections()[0]]
    return section["user"], section["password"]


def prometheus_web(password_file: Path, path: Path) -> None:
    """Write the web configuration of Prometheus, Alertmanager or an exporter.

    It has one user, `prometheus`, with the bcrypt hash of the password in `password_file`, and the headers that keep
    pages out of frames. Prometheus permits no Referrer-Policy, and frame options in lower case only.
    """
    import bcrypt

    hashed = bcrypt.hashpw(password_file.read_bytes(), bcrypt.gensalt(10)).decode()
    path.write_text(f"{_PAGE_HEADERS}basic_auth_users:\n  prometheus: {hashed}\n")


def fernet_key(path: Path) -> None:
    """Write a key for `cryptography.fernet`, with which MLflow and the gateway encrypt secrets in databases."""
    path.write_text(base64.urlsafe_b64encode(secrets.token_bytes(32)).decode())


def wandb_netrc(path: Path) -> None:
    """Write a netrc file for an operator to fill in; W&B's client finds it by NETRC."""
    path.write_text(
        "# Remove the '#' of the next line, and replace KEY with your W&B key.\n"
        "# machine api.wandb.ai login user password KEY\n"
    )


def comet_config(path: Path) -> None:
    """Write a configuration file for an operator to fill in; Comet's client finds it by COMET_CONFIG."""
    path.write_text(
        "# Remove the '#' of the next two lines, and replace KEY with your Comet key.\n# [comet]\n# api_key = KEY\n"
    )


def s3_to_fill_in(what: str, path: Path) -> None:
    """Write an AWS credentials file for an operator to fill in with the account for `what`."""
    path.write_text(
        f"# Remove the '#' of the next three lines, and fill in the account for {what}.\n"
        "# [default]\n# aws_access_key_id = KEY\n# aws_secret_access_key = SECRET\n"
    )


def to_fill_in(what: str, path: Path) -> None:
    """Write a file for an operator to fill in, of which `what` will be the whole content."""
    path.write_text(f"# Replace this line by {what}.\n")


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


def _read_ini(path: Path) -> configparser.ConfigParser:
    config = configparser.ConfigParser(interpolation=None)
    if not config.read(path):
        raise SettingsError(f"There is no secret {path}; run `make env` to generate missing secrets.")
    return config
