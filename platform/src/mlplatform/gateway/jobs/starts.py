"""Warm and cold starts of the jobs' processes, counted from the nodes' logs of starts, each line once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Engine, delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from mlplatform.errors import UnreachableError
from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.jobs.schema import AttemptRow, StartLogRow, StartRow
from mlplatform.warm.notes import LINE_BYTES, REASON_CHARACTERS

MAX_REASONS = 16
"""Different reasons that are counted per attempt; starts for further ones are counted as `OTHER`."""

OTHER = "other reasons"

KEPT_LOGS = 16
"""Positions that are kept per node; a node keeps its last four logs."""

WARM = ""
"""The reason of a warm start, as a part of the primary key cannot be null."""

_Attempt = tuple[str, int]


class Start(NamedTuple):
    """A way in which processes of an attempt started."""

    job_id: str
    attempt: int
    role: str
    reason: str
    """Why they started cold; `WARM` if they did not."""


@dataclass(frozen=True)
class Accepted:
    """The answer to bytes of a log.

    Attributes:
        expected: offset of the next bytes.
        counted: starts that were counted.
    """

    expected: int
    counted: Mapping[Start, int]


class StartStore:
    """Starts per attempt, and the position in each node's log.

    Every method raises UnreachableError while the database is unavailable; then nothing has changed.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @transaction
    def accept(self, session: Session, node: str, file: str, offset: int, body: bytes) -> Accepted:
        """Count the complete lines in bytes of a log, and store the position after them, in one transaction.

        Bytes at another offset than the expected one count nothing, so a repeated request changes nothing. Invalid
        lines are skipped, and so are those of unknown jobs and attempts.

        Args:
            node: name of the node.
            file: name of the log.
            offset: position of the first byte.
            body: the bytes; none to ask for the position.
        """
        log = _log(session, node, file)
        if not body or offset != log.bytes_read:
            return Accepted(log.bytes_read, {})
        end = body.rfind(b"\n") + 1
        if not end and len(body) >= LINE_BYTES:
            end = len(body)  # no line that the nodes write is that long
        starts = Counter(start for line in body[:end].splitlines() if (start := _start(line)))
        log.bytes_read += end
        return Accepted(log.bytes_read, _count(session, starts))

    @transaction
    def of(self, session: Session, job_id: str) -> Mapping[int, Sequence[StartRow]]:
        """Return how the processes of a job started, by the number of the attempt."""
        query = select(StartRow).where(StartRow.job_id == job_id).order_by(StartRow.role, StartRow.reason)
        found = defaultdict(list)
        for row in session.scalars(query):
            found[row.attempt].append(row)
        return found


class _Line(BaseModel):
    """Fields of a line that are counted; `warm.notes.note` writes it."""

    model_config = ConfigDict(strict=True)

    job: str = Field(pattern=r"^[A-Za-z0-9_.:@+-]{1,128}$")
    attempt: Annotated[int, Field(strict=False, ge=1, le=1_000_000)]
    role: Literal["driver", "worker"]
    cold: str | None


def _start(line: bytes) -> Start | None:
    try:
        read = _Line.model_validate_json(line)
    except ValidationError:
        return None
    if read.cold is None:
        return Start(read.job, read.attempt, read.role, WARM)
    # Printed to terminals, and Postgres cannot store NUL.
    reason = "".join(character if character.isprintable() else "?" for character in read.cold[:REASON_CHARACTERS])
    return Start(read.job, read.attempt, read.role, reason or OTHER)


def _log(session: Session, node: str, file: str) -> StartLogRow:
    """Return the row of a log, locked until the end of the transaction."""
    query = select(StartLogRow).where(StartLogRow.node == node, StartLogRow.file == file)
    if log := session.scalars(query.with_for_update()).one_or_none():
        return log
    log = StartLogRow(node=node, file=file, bytes_read=0)
    try:
        session.add(log)
        session.flush()
    except IntegrityError as error:
        raise UnreachableError(f"Another request adds {file} of {node} at this moment; send it again.") from error
    newest = select(StartLogRow.sequence).where(StartLogRow.node == node).order_by(StartLogRow.sequence.desc())
    old = session.scalars(newest.offset(KEPT_LOGS)).all()
    session.execute(delete(StartLogRow).where(StartLogRow.sequence.in_(old)))
    return log


def _count(session: Session, starts: Mapping[Start, int]) -> Mapping[Start, int]:
    """Add to the counts of the attempts that exist; return what was added."""
    known = _lock(session, {start.job_id for start in starts})
    query = select(StartRow).where(StartRow.job_id.in_({job_id for job_id, _ in known}))
    rows = {Start(row.job_id, row.attempt, row.role, row.reason): row for row in session.scalars(query)}
    reasons: dict[_Attempt, set[str]] = defaultdict(set)
    for row in rows:
        reasons[row.job_id, row.attempt].add(row.reason)
    counted: Counter[Start] = Counter()
    for start, number in sorted(starts.items()):
        if (start.job_id, start.attempt) in known:
            counted[_folded(start, reasons[start.job_id, start.attempt])] += number
    for start, number in counted.items():
        if start in rows:
            rows[start].count += number
        else:
            session.add(StartRow(**start._asdict(), count=number))
    return counted


def _lock(session: Session, jobs: Iterable[str]) -> set[_Attempt]:
    """Lock the attempts of jobs, in one order, so that nobody else deletes them or counts their starts; return them."""
    attempts = select(AttemptRow.job_id, AttemptRow.number).where(AttemptRow.job_id.in_(jobs))
    rows = session.execute(attempts.order_by(AttemptRow.job_id, AttemptRow.number).with_for_update())
    return {(job_id, number) for job_id, number in rows}


def _folded(start: Start, reasons: set[str]) -> Start:
    """Return the start with the reason that it is counted for; that is added to `reasons`, those of its attempt."""
    if start.reason != WARM and start.reason not in reasons and len(reasons - {WARM, OTHER}) >= MAX_REASONS:
        return start._replace(reason=OTHER)
    reasons.add(start.reason)
    return start
