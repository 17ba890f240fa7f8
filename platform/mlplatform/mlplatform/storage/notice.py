"""Notice that asks an attempt of a job to save its state and leave, in `<storage>/<job id>/notice`, as JSON.

The gateway writes it, then stops the entry point with SIGTERM; at the deadline, Ray ends it with SIGKILL.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from mlplatform.errors import StorageError
from mlplatform.settings.job import settings
from mlplatform.storage import addresses, objects
from mlplatform.storage.small_files import answer

NAME = "notice"

DONE = "done"
"""File with the number of an attempt that has finished although it was asked to leave: Ray lists it as stopped."""

_QUESTION = "whether the attempt is to leave"


@dataclass(frozen=True)
class Notice:
    """A notice.

    Attributes:
        attempt: number of the attempt that is asked to leave.
        deadline: time at which it is killed, in seconds since 1970.
        why: sentence that says who takes back its resources.
    """

    attempt: int
    deadline: float
    why: str


def give(job_id: str, notice: Notice) -> None:
    """Write a notice for an attempt of a job in place of that of an earlier one.

    Raises:
        UnreachableError, AccessError, StorageError: the storage cannot be written.
    """
    objects.of_job(job_id).write(NAME, json.dumps(asdict(notice)))


def remove(job_id: str) -> None:
    """Remove the files of a job: the next job with its id begins with attempt 1.

    Raises:
        UnreachableError, AccessError, StorageError: the storage cannot be written.
    """
    for name in (NAME, DONE):
        objects.of_job(job_id).delete(name)


def finished(job_id: str, attempt: int) -> bool:
    """Return whether an attempt that was asked to leave has finished.

    Raises:
        UnreachableError, StorageError: the storage cannot be read.
    """
    return answer(addresses.checkpoint_uri(DONE, job_id), _QUESTION) == str(attempt)


def finish() -> None:
    """Record that this process' attempt has finished.

    Raises:
        UnreachableError, AccessError, StorageError: the storage cannot be written.
    """
    objects.of_job(str(settings().job_id)).write(DONE, str(settings().attempt))


def applies() -> bool:
    """Return whether this process belongs to an attempt that may be asked to leave."""
    return settings().job_id is not None and settings().grace_s is not None


def received() -> Notice | None:
    """Read this process' notice; None if its attempt was not asked to leave. Costs a small read.

    Raises:
        UnreachableError: the storage does not answer.
        StorageError: the file cannot be read.
    """
    uri = addresses.checkpoint_uri(NAME, str(settings().job_id))
    text = answer(uri, _QUESTION)
    try:
        notice = None if text is None else Notice(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise StorageError(f"{uri} does not hold a notice ({error}); remove it.") from error
    return notice if notice and notice.attempt == settings().attempt else None
