"""Declaration of a setting of `.env`: one field, whose name in capitals is its variable in `.env` and in containers."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}


class Section(BaseSettings):
    """Settings below one heading of `.env.example`, which is the first line of the docstring.

    Only the field has the default, and the docstring below it is the comment in that file. A setting that is empty in
    `.env` has its default, too.
    """

    model_config = SettingsConfigDict(
        extra="ignore", frozen=True, env_ignore_empty=True, alias_generator=str.upper, use_attribute_docstrings=True
    )

    @classmethod
    def defaults(cls) -> dict[str, str]:
        """Return the defaults as they stand in `.env`, by variable, except those that are empty there."""
        fields = {str(field.validation_alias): field for field in cls.model_fields.values()}
        known = {name: field.default for name, field in fields.items() if not field.is_required()}
        return {name: str(value) for name, value in known.items() if value not in (None, "")}

    @classmethod
    def variables(cls) -> frozenset[str]:
        """Return the variables of these settings."""
        return frozenset(str(field.validation_alias) for field in cls.model_fields.values())


def of_host(default: Any, **options: Any) -> Any:
    """Return the field of a setting of this host's hardware, addresses, mirrors or disks, which a restore keeps."""
    return Field(default, json_schema_extra={"of_host": True}, **options)


def of_stack(default: Any, **options: Any) -> Any:
    """Return the field of a setting of the stack, which a restore adopts from the backup."""
    return Field(default, json_schema_extra={"of_host": False}, **options)


def _size(text: object) -> object:
    """Convert Docker's notation of a size ("512m", "8g", "8gb"), or a number of bytes, to bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([bkmg]?)b?", str(text).lower())
    if not found:
        raise ValueError("a size is a number with a unit, such as 512m or 8g")
    return int(float(found[1]) * _UNITS[found[2]])


Size = Annotated[int, BeforeValidator(_size)]
"""Bytes, in Docker's notation."""
