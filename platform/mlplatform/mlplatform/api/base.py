"""Parts that the models of the interface share."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

MOST_ENTRIES = 1000
"""Entries in one answer at most: of the audit log, of the queue, and of the usage by job."""

_NUMBER = re.compile(r"\d{1,19}", re.ASCII)


class Body(BaseModel):
    """A body that a client sends; a field that is unknown is an error, as it would have no effect."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answer(BaseModel):
    """A body that the gateway answers with, read from its rows; a client ignores fields of a newer gateway."""

    model_config = ConfigDict(from_attributes=True, json_schema_serialization_defaults_required=True)


def _counted(value: object) -> int:
    text = str(value)
    if not _NUMBER.fullmatch(text) or int(text) >= 1 << 63:
        raise ValueError("pass a whole number from 0 to 2^63-1")
    return int(text)


# Written as `isoformat` does: pydantic would write UTC as `Z`.
Moment = Annotated[
    datetime,
    PlainSerializer(datetime.isoformat, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Time with its zone, in ISO 8601."""

Count = Annotated[int, BeforeValidator(_counted), WithJsonSchema({"type": "string", "pattern": "^[0-9]{1,18}$"})]
"""Whole number of 64 bits in a query."""

Name = Annotated[str, Field(json_schema_extra={"pattern": "^[a-z](-?[a-z0-9]){1,29}$"})]
"""Name of a person or a team; the gateway's store checks it, and says what is allowed."""
