"""Reference to a job's MLflow run, stored beside its checkpoints.

MLflow searches for a run only in the experiments that the request names. Listing 500 experiments takes longer than
all other requests for opening a run together.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from mlplatform.storage import addresses, small_files

NAME = ".mlflow-run"


@dataclass(frozen=True)
class RunReference:
    """A run, and the MLflow server that has it."""

    tracking_uri: str
    run_id: str


def read(job_id: str) -> RunReference | None:
    """Return the run of a job; None if no attempt has stored one.

    Raises:
        OSError: the storage is unavailable or rejects the request.
        ValueError: the file does not hold a reference.
    """
    text = small_files.read_text(_uri(job_id))
    if text is None:
        return None
    try:
        return RunReference(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_uri(job_id)} holds {text[:40]!r} instead of a reference to a run; delete it.") from error


def write(job_id: str, reference: RunReference) -> None:
    """Store the run of a job; it waits while the storage is unavailable.

    Raises:
        FencedError: a later attempt of this job was started.
        OSError: the storage rejects the request.
    """
    from mlplatform.storage.filesystem import filesystem

    files, path = filesystem(_uri(job_id))
    if not _uri(job_id).startswith("s3://"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with files.open_output_stream(path) as stream:
        stream.write(json.dumps(asdict(reference)).encode())


def _uri(job_id: str) -> str:
    return addresses.checkpoint_uri(NAME, job_id)
