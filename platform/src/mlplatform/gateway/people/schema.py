"""Tables of people's sessions; `migrations/` creates and upgrades them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from mlplatform.gateway.database.base import Base


class SessionRow(Base):
    """A browser that has logged in. Neither its id nor the token can be computed from the row."""

    __tablename__ = "sessions"

    digest: Mapped[str] = mapped_column(primary_key=True)
    """SHA-256 of the session's id, which only the browser has."""

    token_digest: Mapped[str]
    """SHA-256 of the token that opened it: a rotation of the token ends the session."""

    expires: Mapped[datetime]
