"""Requests and answers between log shippers and the gateway, about bytes of log files."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from mlplatform.api.base import Answer, Count

_NAME = re.compile(r"(?!\.+\Z)[\w.:@+-]{1,255}", re.ASCII)
"""The characters of job ids."""


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("use at most 255 letters, digits, '_', '.', ':', '@', '+' and '-'")
    return name


FileName = Annotated[
    str, AfterValidator(_checked), Field(json_schema_extra={"pattern": "^[A-Za-z0-9_-][A-Za-z0-9_.:@+-]{0,254}$"})
]
"""Name of a node, of a session of Ray, or of a log file."""


class Position(BaseModel):
    """Bytes of a log file: those from `offset` on."""

    session: FileName
    offset: Count
    inode: Count
    restart: Count | SkipJsonSchema[None] = Field(
        None, description="Bytes that were accepted of the file before it was rewritten: begin at 0."
    )
    more: str = Field("0", description="1 if more bytes follow at once.")


class Expected(Answer):
    """The offset of the next bytes."""

    expected: int


class Pass(BaseModel):
    """A log shipper's report that it sent everything up to a moment."""

    pass_started: float = Field(allow_inf_nan=False, description="Unix seconds.")
    instance: str | None = Field(None, description="The instance of the gateway that answered before.")


class Again(Answer):
    """True if the shipper should look again at once."""

    again: bool


class Requested(Answer):
    """True if someone waits for a pass of one of the nodes."""

    requested: bool
