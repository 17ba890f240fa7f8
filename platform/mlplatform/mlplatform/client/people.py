"""People, teams and tokens at the gateway, and the file with a person's own token."""

from __future__ import annotations

import configparser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mlplatform.api.cluster import Utilisation
from mlplatform.api.people import LoggedIn, Teams
from mlplatform.api.storage import Key, Store
from mlplatform.client import s3_profile
from mlplatform.client.connection import Connection
from mlplatform.contract import PERSON_TOKEN
from mlplatform.errors import AccessError, PlatformError, SettingsError, UnreachableError
from mlplatform.files import atomic
from mlplatform.secrets.credentials import read_mlflow_account, write_mlflow_account
from mlplatform.settings.job import Settings, aws_credentials_file, default_token_file, mlflow_credentials_file

GUARANTEES = """\
Between people on one Ray cluster, the platform guarantees:
- The gateway knows who sends a request. It shows logs, commands and names of variables of a job to its team only, and
  values of variables to its owner only. Only the owner, leads of the team and administrators can stop or delete it.
- A mistake in somebody's command or script changes no job of anybody else through the gateway.
It does not guarantee:
- Protection from hostile code, neither within a team nor between teams. Each job gets Ray's own token, and all jobs run
  as one user: code that is meant to can read variables and files of other jobs, and can control the whole cluster.
- That whoever acts at the gateway is who they say: the code of a job may read the tokens of running jobs in Ray's
  records, and act there for their owners until these jobs end.
- That a job uses only what it has declared: Ray also grants what the job's code requests later.
- A team's share at any moment: what others have borrowed returns when their jobs have had time to save their state,
  two minutes unless the administrator has set another time. A job that has reached its time limit (a day, unless the
  job or its team sets another) ends when another job needs what it holds, also within its team's share.
- Separate data: all jobs have one account at MLflow and one at the object store, where all people have another. What a
  job or a person deletes there by mistake can be recovered, for as long as the administrator has set.
Teams that must be protected from each other need a stack each.
"""
"""Guarantees of one Ray cluster for several people, in plain words."""


@dataclass(frozen=True)
class Session:
    """A log-in that has succeeded.

    Attributes:
        person: name of the person.
        expires: end of the token.
        file: file with the token.
        mlflow_file: file with the person's account as MLflow's clients read it; None without one, or if there was a
            file with another account.
        has_mlflow: whether people have accounts at MLflow.
        s3_profile: profile in `~/.aws` for the object store; None if none was written.
        s3_endpoint: address of the object store in the profile.
        s3_problem: sentence that says why there is none; None also without an object store.
    """

    person: str
    expires: datetime
    file: Path
    mlflow_file: Path | None
    has_mlflow: bool
    s3_profile: str | None = None
    s3_problem: str | None = None
    s3_endpoint: str | None = None


def beyond_nodes(link: Connection) -> str | None:
    """Return a sentence if the shares of the teams add up to more than the nodes have; None if they do not.

    Shares then shrink in proportion, so that no team gets what it was promised.
    """
    try:
        use = link.read(Utilisation, "GET", "/platform/utilisation")
    except UnreachableError:
        return None
    have = {"GPUs": len(use.gpus), "CPUs": sum(node.cpus for node in use.nodes)}
    teams = link.read(Teams, "GET", "/platform/teams").teams
    shares = {"GPUs": sum(team.share_gpus for team in teams), "CPUs": sum(team.share_cpus for team in teams)}
    beyond = [f"{shares[kind]:g} {kind} of {have[kind]:g}" for kind in have if shares[kind] > have[kind]]
    if not beyond:
        return None
    return (
        f"The shares of the teams add up to {' and '.join(beyond)} that the nodes have, so they shrink in proportion."
    )


def caps_in(option: str, pairs: Sequence[str]) -> dict[str, float]:
    """Return upper limits by name, from `gpus=4`; a name with nothing after the `=` has no limit.

    Raises:
        SettingsError: a pair is invalid.
    """
    found: dict[str, float] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in ("gpus", "cpus", "running", "waiting"):
            raise SettingsError(f"Invalid {option} {pair!r}: use gpus=, cpus=, running= or waiting= and a number.")
        if value:
            try:
                found[name] = float(value) if name in ("gpus", "cpus") else int(value)
            except ValueError as error:
                raise SettingsError(f"Invalid {option} {pair!r}: {value!r} is not a number.") from error
    return found


def _login_file(settings: Settings) -> Path:
    """Return the file that a log-in writes, also where `Settings.token_file` is None: before the first log-in."""
    return settings.ray_auth_token_path or default_token_file()


def log_in(settings: Settings, code: str, force: bool = False) -> Session:
    """Exchange a log-in code for a token and accounts, in the files that Ray, MLflow and S3 clients read, mode 0600.

    MLflow's file is left alone if it has an account that no log-in has written, and so are other profiles of S3.

    A token of the same person in the file is replaced and revoked.

    Args:
        settings: address of the gateway, and the file.
        code: a code of `mlplatform people add`.
        force: replace a token of somebody else, which remains valid.

    Raises:
        AccessError: the code is wrong, used or expired.
        JobError: the token in the file is of somebody else; the code remains valid.
        SettingsError: the file has another token or cannot be written.
    """
    file = _login_file(settings)
    old = None if force else _id_in(file)
    if _content(file) and old is None and not force:
        raise SettingsError(
            f"{file} has a token that is not a person's; set RAY_AUTH_TOKEN_PATH to another file, or pass --force to "
            "replace it."
        )
    body = {"code": code, **({"instead_of": old} if old else {})}
    with Connection(settings, authenticates=False) as link:
        try:
            # Written first: a code is used up by the answer.
            with atomic.private_file(file) as draft:
                answer = link.read(LoggedIn, "POST", "/platform/tokens", json=body)
                draft.write_text(f"{answer.token}\n")
        except OSError as error:
            raise SettingsError(
                f"{file} cannot be written ({error.strerror}); set RAY_AUTH_TOKEN_PATH to a file."
            ) from error
    password = answer.mlflow_password
    mlflow_file = _write_mlflow_file(answer.person, password)
    done = Session(answer.person, answer.expires, file, mlflow_file, password is not None)
    return _with_s3_profile(settings.model_copy(update={"ray_auth_token_path": file}), done)


def log_out(settings: Settings) -> Path:
    """Revoke the person's token and remove its file; return the file.

    Raises:
        SettingsError: the file does not exist, or has another token, which is kept.
        UnreachableError: nothing answers at the address; the file stays.
    """
    file = _login_file(settings)
    token_id = _id_in(file)
    if token_id is None:
        raise SettingsError(f"{file} has no token of a person, so there is nothing to log out from.")
    with Connection(settings) as link, suppress(AccessError):  # it has ended
        link.call("DELETE", f"/platform/tokens/{token_id}", named=True)
    file.unlink()
    if _is_ours(mlflow_credentials_file()):
        mlflow_credentials_file().unlink()
    with suppress(SettingsError):  # what it has is not valid any more
        s3_profile.remove(file)
    return file


def s3_credentials(settings: Settings) -> dict[str, Any]:
    """Return the S3 key of people as `credential_process` of AWS clients prints it, valid for an hour.

    Without an end, pyarrow would ask for it again with nearly each request.

    Raises:
        AccessError: the token is missing or rejected, or the object store rejects the gateway.
        UnreachableError: the gateway or the object store does not answer.
    """
    with Connection(settings) as link:
        key = link.read(Key, "POST", "/platform/storage-credentials")
    expires = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds").replace("+00:00", "Z")
    account = {"AccessKeyId": key.access_key, "SecretAccessKey": key.secret_key}
    return {"Version": 1, **account, "Expiration": expires}


def _is_ours(mlflow_file: Path) -> bool:
    """Return whether a file of MLflow's client has an account that the gateway made, which has the form of a token."""
    try:
        return PERSON_TOKEN.fullmatch(read_mlflow_account(mlflow_file)[1]) is not None
    except (PlatformError, OSError, KeyError, configparser.Error):
        return False


def _write_mlflow_file(person: str, password: str | None) -> Path | None:
    """Write MLflow's file; return it, or None if there is no password, or it has another account."""
    file = mlflow_credentials_file()
    if password is None or (file.exists() and not _is_ours(file)):
        return None
    try:
        with atomic.private_file(file) as draft:
            write_mlflow_account(person, password, draft)
    except (PlatformError, OSError):
        return None
    return file


def _with_s3_profile(settings: Settings, done: Session) -> Session:
    """Write the profile for the object store, if there is one; return the log-in with it, or with the problem."""
    known = settings.s3_credentials
    try:
        with Connection(settings) as link:
            place = link.read(Store, "GET", "/platform/storage-credentials").s3
        if place is None:
            s3_profile.remove(done.file)  # of another stack
            return done
        if known is not None and known.expanduser().resolve() != aws_credentials_file().resolve():
            return replace(
                done, s3_problem=f"S3 clients use another account: AWS_SHARED_CREDENTIALS_FILE={known} names a file."
            )
        # In a notebook of the stack, the address there; the gateway's answer is for machines outside.
        endpoint = settings.s3_endpoint or place.endpoint_url
        profile = s3_profile.write(settings, done.file, endpoint, place.region)
    except PlatformError as error:
        return replace(done, s3_problem=f"S3 clients cannot use your log-in: {error}")
    return replace(done, s3_profile=profile, s3_endpoint=endpoint)


def _content(file: Path) -> str:
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SettingsError(f"{file} cannot be read ({error.strerror}); set RAY_AUTH_TOKEN_PATH to a file.") from error


def _id_in(file: Path) -> str | None:
    """Return the id of the person's token in a file; None if it has none."""
    match = PERSON_TOKEN.fullmatch(_content(file))
    return match[1] if match else None
