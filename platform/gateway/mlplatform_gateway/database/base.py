"""Base of the gateway's tables."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, DateTime, Dialect, TypeDecorator
from sqlalchemy.orm import DeclarativeBase


class _Time(TypeDecorator[datetime]):
    """A time with its zone, which SQLite does not store."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class Base(DeclarativeBase):
    """Base class of the gateway's tables."""

    type_annotation_map = {datetime: _Time, dict[str, Any]: JSON(none_as_null=True)}  # noqa: RUF012 - SQLAlchemy's form
