"""State of a file that the log shipper sends: its last listing, and how much of it the gateway has."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from mlplatform_gateway.logs.lines import LogName

_UNKNOWN_SECONDS, _UNKNOWN_SHARE = 2.0, 0.2
"""Time between two queries of a file to which the gateway had no job: 2 s, then a fifth of the file's age."""


@dataclass
class SentFile:
    """A log file on a node: the result of the last listing, and how far it was sent."""

    node: str
    session: str
    name: LogName
    inode: int
    path: str = ""
    size: int = 0
    modified: float = 0.0
    offset: int | None = None
    """The offset at which the gateway continues; None before the first query."""

    sent: int = 0
    """The gateway has seen the file up to here; the bytes from `offset` on are a partial line."""

    asked: float = 0.0
    """Time of the last query to which the gateway had no job, in Unix seconds; 0 if it has one."""

    rewritten: int | None = None
    """Bytes that the gateway has of the file's former content, if the file was rewritten."""

    rejected: tuple[int, float] | None = None
    """Size and modification time of a file that is not sent until they change."""

    gone: bool = False

    @property
    def url(self) -> str:
        return f"/platform/logs/{quote(self.node)}/{quote(self.name.file)}"

    @property
    def unknown_until(self) -> float:
        """Time of the next query of a file to which the gateway had no job, in Unix seconds."""
        return self.asked + max(_UNKNOWN_SECONDS, _UNKNOWN_SHARE * (self.asked - self.modified)) if self.asked else 0.0

    @property
    def undecided(self) -> bool:
        """True if the file may still turn out to be a running job's; not after 10 s in which no job came for it.

        The files of Ray's own job supervisors never get one, and a burst of jobs leaves hundreds of them.
        """
        return bool(self.asked) and self.unknown_until - self.asked <= _UNKNOWN_SECONDS

    @property
    def idle(self) -> bool:
        """True if there is nothing to send or to query."""
        rejected = self.rejected == (self.size, self.modified)
        return self.gone or rejected or (self.offset is not None and self.sent == self.size)

    def forget(self) -> None:
        """Query again, because the gateway may have lost bytes that it had accepted."""
        self.offset, self.sent, self.asked, self.rewritten, self.rejected = None, 0, 0.0, None, None
