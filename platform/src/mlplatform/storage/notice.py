"""Notice that asks an attempt of a job to save its state and leave, in `<storage>/<job id>/notice`, as JSON.

The gateway writes it, then stops the entry point with SIGTERM; at the deadline, Ray ends it with SIGKILL.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from mlplatform.compat.pyarrow import is_outage
from mlplatform.errors import StorageError, UnreachableError
from mlplatform.settings.job import settings
from mlplatform.storage import addresses, objects
from mlplatform.storage.small_files import read_text

NAME = "notice"


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
    store = objects.open_store(addresses.checkpoint_uri(job_id=job_id), bulk=False)
    store.write(NAME, json.dumps(asdict(notice)))


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
    try:
        text = read_text(uri)
        notice = None if text is None else Notice(**json.loads(text))
    except OSError as error:
        kind = UnreachableError if is_outage(error) else StorageError
        raise kind(f"Cannot read from {uri} whether this attempt is to leave ({error}); check the storage.") from error
    except (TypeError, ValueError) as error:
        raise StorageError(f"{uri} does not hold a notice ({error}); remove it.") from error
    return notice if notice and notice.attempt == settings().attempt else None
