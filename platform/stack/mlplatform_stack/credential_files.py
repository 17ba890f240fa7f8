"""Writers of credential files.

Each file has the format that its program reads, so that no password passes through a variable or a command line.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from mlplatform.secrets.credentials import read_ini, write_mlflow_account

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
    """Write the file that MLflow's client reads its account from, with a new password."""
    write_mlflow_account(user, password(), path)


def s3_account(user: str, path: Path) -> None:
    """Write an AWS credentials file; boto3 and pyarrow find it by AWS_SHARED_CREDENTIALS_FILE."""
    path.write_text(f"[default]\naws_access_key_id = {user}\naws_secret_access_key = {password()}\n")


def postgres_service(user: str, path: Path) -> None:
    """Write a libpq service file (`PGSERVICEFILE`), which holds address and account.

    Not a password file, because libpq ignores one that other users can read.
    """
    path.write_text(f"[{user}]\nhost=postgres\nport=5432\nuser={user}\npassword={password()}\n")


def read_postgres_service(path: Path) -> tuple[str, str]:
    """Read user and password from a file of `postgres_service`."""
    config = read_ini(path)
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


def to_fill_in(*lines: str) -> Callable[[Path], object]:
    """Return the writer of a file with these comments, which an operator replaces by keys."""
    text = "".join(f"# {line}\n" for line in lines)
    return lambda path: path.write_text(text)
