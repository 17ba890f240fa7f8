"""Folder in memory with the secrets of a job's owner: one per attempt and node, which its processes there share.

The first process of an attempt on a node gets the secrets from the gateway. Each process holds a shared lock on the
folder until it ends, so that the folder is removed when none is left. It uses little of the standard library, because
each worker process of Ray begins with it (`compat/ray_setup_worker.py`).
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Mapping

ROOT = "/dev/shm/mlplatform-secrets"  # noqa: S108 - memory of the node's container; folders in it have mode 0700
"""Folder of these folders, which no disk and no backup stores."""

FOLDER, TOKEN, GATEWAY = "MLPLATFORM_SECRETS", "MLPLATFORM_ATTEMPT_TOKEN", "MLPLATFORM_GATEWAY"
"""Variables of a process: its folder, the token of its attempt, and the address of the gateway."""

PATH = "/platform/attempt/secrets"

_PATIENCE_SECONDS = 60.0
"""Longest time that the gateway may be unavailable; a restart takes seconds. Ray then starts another process."""

_ANSWER_SECONDS = 10.0

_REFUSALS = (401, 403, 404)


class RefusedError(Exception):
    """The gateway gives no secrets to this attempt."""


def folder_of(submission_id: str) -> str:
    """Return the folder of an attempt.

    Args:
        submission_id: id of the attempt at Ray, which may contain characters that a path cannot.
    """
    from hashlib import sha256

    return f"{ROOT}/{sha256(submission_id.encode()).hexdigest()[:32]}"


def provide(environment: Mapping[str, str]) -> None:
    """Make the folder that the environment names, unless another process has, and hold it until this process ends.

    The process that this one executes holds it, too. Does nothing for jobs without secrets, and for those that set the
    variable to a folder of their own. An attempt that has ended gets no folder.

    Raises:
        SystemExit: the gateway is unavailable.
    """
    folder = environment.get(FOLDER, "")
    if not folder.startswith(f"{ROOT}/"):
        return
    until = time.monotonic() + _PATIENCE_SECONDS
    while not _hold(folder):
        try:
            if _make(folder, _fetched(environment.get(GATEWAY, ""), environment.get(TOKEN, ""))):
                return
        except RefusedError as error:
            print(f"This process has no folder {FOLDER}={folder}: {error}", file=sys.stderr, flush=True)
            return
        except OSError as error:
            if time.monotonic() > until:
                sys.exit(f"The secrets for this process are unavailable ({error}); check the gateway.")
            time.sleep(1)


def remove_unused(root: str = ROOT) -> None:
    """Remove the folders that no process holds."""
    try:
        names = os.listdir(root)  # noqa: PTH208 - pathlib takes 5 ms to import
    except FileNotFoundError:
        return
    for name in names:
        folder = f"{root}/{name}"
        try:
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
        except OSError:
            pass  # a process holds it, or is removing it
        finally:
            os.close(opened)


def _hold(folder: str) -> bool:
    """Hold a folder; return False if it does not exist, also if it was removed meanwhile."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    fcntl.flock(opened, fcntl.LOCK_SH)
    try:
        is_there = os.path.samestat(os.fstat(opened), os.stat(folder))  # noqa: PTH116 - as above
    except FileNotFoundError:
        is_there = False
    if not is_there:
        os.close(opened)
        return False
    os.set_inheritable(opened, True)
    return True


def _make(folder: str, values: Mapping[str, bytes]) -> bool:
    """Make and hold a folder with these files; return False if another process was faster."""
    draft = f"{folder}.{os.getpid()}"
    os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120 - as above
    os.mkdir(draft, 0o700)  # noqa: PTH102 - as above
    opened = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(opened, fcntl.LOCK_SH)
    for name, value in values.items():
        file = os.open(f"{draft}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(value)
    try:
        os.rename(draft, folder)  # noqa: PTH104 - as above
    except OSError:
        _remove(draft)
        os.close(opened)
        return False
    os.set_inheritable(opened, True)
    return True


def _remove(folder: str) -> None:
    for name in os.listdir(folder):  # noqa: PTH208 - as above
        os.unlink(f"{folder}/{name}")  # noqa: PTH108 - as above
    os.rmdir(folder)  # noqa: PTH106 - as above


def _fetched(address: str, token: str) -> dict[str, bytes]:
    """Get the secrets from the gateway.

    Raises:
        RefusedError: the token is not that of an attempt that runs.
        OSError: the gateway is unavailable.
    """
    import json
    from base64 import b64decode
    from http.client import HTTPConnection, HTTPException
    from urllib.parse import urlsplit

    server = urlsplit(address)
    if server.scheme != "http" or not server.hostname:
        raise RefusedError(f"{GATEWAY}={address!r} is not the address of the gateway.")
    # Not by `urllib.request`, which would send the token to a proxy of the environment.
    connection = HTTPConnection(server.hostname, server.port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", PATH, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body = answer.read()
    except HTTPException as error:
        raise OSError(f"{address}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status in _REFUSALS:
        raise RefusedError(body.decode(errors="replace")[:1000])
    if answer.status != 200:
        raise OSError(f"{address} answers {answer.status}")
    return {name: b64decode(value) for name, value in json.loads(body)["secrets"].items()}
