"""The audit log."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from pydantic.json_schema import SkipJsonSchema

from mlplatform.api.base import MOST_ENTRIES, Answer, Count, Moment


def _limit(number: int) -> int:
    if not 1 <= number <= MOST_ENTRIES:
        raise ValueError(f"pass a number from 1 to {MOST_ENTRIES}; `before` leads further back")
    return number


def _decoded(values: Any) -> Any:
    return json.loads(values) if isinstance(values, str) else values


_VERBS: Any = [
    *("submit", "stop", "resume", "delete", "upload", "prune", "add", "set", "remove", "revoke"),
    *("log-in", "log-out", "failed log-in"),
    *("POST", "PUT", "PATCH", "DELETE"),  # of kind `mlflow`
]

_Values = Annotated[dict[str, Any] | None, BeforeValidator(_decoded)]


class Window(BaseModel):
    """Part of the audit log."""

    limit: Annotated[Count, AfterValidator(_limit)] = Field(100, description="100 by default.")
    since: Count | SkipJsonSchema[None] = Field(None, description="Unix time in seconds.")
    before: Count | SkipJsonSchema[None] = Field(
        None, description="Only entries with a lower sequence number, to continue to earlier ones."
    )


class AuditEntry(Answer):
    """An action that somebody has taken, or a log-in that failed."""

    sequence: int
    time: Moment
    principal: str = Field(
        description="The person; `shared token` for everybody who has that token, `unknown` for a failed log-in."
    )
    kind: str = Field(
        description="`token`, `session`, `code`, `internal`, `mlflow`, or `job <id>` for an attempt of that job."
    )
    address: str = Field(description="The client's end of the connection.")
    verb: str = Field(json_schema_extra={"enum": _VERBS})
    object: str = Field(
        description="`job <id>`, `webhook of <person>`, `secret <name> of <person>`, `package <name>`, "
        "`session <8 digits>`, `person <name>`, `team <name>`, `token <id>`, the kind that was pruned, or method and "
        "path."
    )
    before: _Values = Field(description="Values that were changed or deleted.")
    after: _Values = Field(description="The same values afterwards.")


class Entries(Answer):
    """The latest entries, the oldest of them first."""

    entries: list[AuditEntry]
