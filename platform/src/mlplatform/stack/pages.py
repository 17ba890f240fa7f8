"""Web pages of the stack, and the ssh line that forwards them to a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlplatform.settings.stack import StackSettings
from mlplatform.stack.services import available


@dataclass(frozen=True)
class Page:
    """A published port: its service and profile, the setting that changes it, how to log in, and its name."""

    title: str
    service: str
    profile: str | None
    setting: str
    port: int
    login: str
    name: str = ""


def pages(settings: StackSettings) -> list[Page]:
    """Return every published port, in the order in which people need them."""
    return [
        Page(
            port.title,
            service.name,
            service.profile,
            port.setting,
            getattr(settings, port.setting.lower()),
            port.login,
            port.name,
        )
        for service in available(settings)
        for port in service.ports
    ]


def ssh_line(shown: Sequence[Page], user_at_host: str) -> str:
    """Return the one command that forwards pages to a laptop, on the same ports."""
    forwards = " ".join(f"-L {page.port}:127.0.0.1:{page.port}" for page in shown)
    return f"ssh -N {forwards} {user_at_host}"
