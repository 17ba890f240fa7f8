"""Fence that keeps a replaced attempt of a job from writing.

An attempt that is presumed dead may only be asleep, and wake up beside its successor. `<storage>/<job id>/attempt`
holds the number of the lowest attempt that may write, as text. It is written before that attempt starts, so the new
attempt sees every write that an old one makes within the seconds of this start; later writes are rejected. A process
without an attempt's number never checks, because nothing replaces it.
"""

from __future__ import annotations

import time
from functools import cache

from mlplatform.errors import FencedError, StorageError
from mlplatform.settings.job import settings
from mlplatform.storage import addresses, objects
from mlplatform.storage.small_files import answer

NAME = "attempt"

_VALID_SECONDS = 0.2
"""Seconds for which an answer is valid. An attempt takes at least 3 s to start, Ray's import included, so what a
replaced one still writes in this time is stored before its successor looks."""

# Of the monotonic clocks, the one that also counts while the machine is suspended (Linux); each counts while a process
# is stopped.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def applies() -> bool:
    """Return whether this process belongs to a numbered attempt of a job; the gateway numbers every attempt."""
    known = settings()
    return known.job_id is not None and "attempt" in known.model_fields_set


def check(wait: bool = True) -> None:
    """Raise unless this process' attempt may write; costs a small read, at most every 0.2 s.

    Args:
        wait: retry for up to ten minutes while the storage is unavailable; if False, raise at once.

    Raises:
        FencedError: a later attempt was started; final for this process.
        UnreachableError, StorageError: the storage cannot be read.
    """
    if applies():
        known = settings()
        _own(str(known.job_id), known.attempt, known.storage).check(wait)


def allowed(job_id: str, wait: bool = False) -> int | None:
    """Return the number of the lowest attempt that may write; None if no attempt was fenced off yet.

    Raises:
        UnreachableError: the storage does not answer.
        StorageError: the file cannot be read, or does not hold a number.
    """
    text = answer(uri(job_id), "which attempt may write", wait=wait)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise StorageError(f"{uri(job_id)} holds {text[:40]!r}, not the number of an attempt; write one into it.")
    return int(text)


def uri(job_id: str) -> str:
    """Return the address of the file with the number."""
    return addresses.checkpoint_uri(NAME, job_id)


def allow(job_id: str, attempt: int) -> None:
    """Fence off all attempts before this one. The process that starts an attempt calls this first.

    Raises:
        UnreachableError, AccessError, StorageError: the storage cannot be written.
    """
    objects.of_job(job_id).write(NAME, str(attempt))


def remove(job_id: str) -> None:
    """Remove the fence of a job; the next job with its id begins with attempt 1.

    Raises:
        UnreachableError, AccessError, StorageError: the storage cannot be written.
    """
    objects.of_job(job_id).delete(NAME)


class _Own:
    """State of this process' own attempt."""

    def __init__(self, job_id: str, attempt: int) -> None:
        self._job_id = job_id
        self._attempt = attempt
        self._allowed_at = float("-inf")
        self._replaced = ""

    def check(self, wait: bool) -> None:
        if self._replaced:
            raise FencedError(self._replaced)
        # Taken before the read: a process that is stopped while it waits for the answer reads again.
        asked_at = time.clock_gettime(_CLOCK)
        if asked_at - self._allowed_at < _VALID_SECONDS:
            return
        current = allowed(self._job_id, wait)
        if current is not None and current > self._attempt:
            self._replaced = (
                f"Attempt {self._attempt} of job {self._job_id} was replaced by attempt {current}; "
                "it can no longer write."
            )
            raise FencedError(self._replaced)
        self._allowed_at = asked_at


@cache
def _own(job_id: str, attempt: int, storage_root: str) -> _Own:
    return _Own(job_id, attempt)
