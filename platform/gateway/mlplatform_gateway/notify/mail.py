"""Delivery of messages to people by mail."""

from __future__ import annotations

import re
import smtplib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from anyio import to_thread

from mlplatform.errors import SettingsError, UnreachableError

MAILTO = "mailto:"

_TIMEOUT_S = 10.0

_ADDRESS = re.compile(r"[A-Za-z0-9._%+-]{1,64}@([A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+)", re.ASCII)
"""Plain addresses only: quoted ones and comments would let a text look like another address."""


@dataclass(frozen=True)
class MailServer:
    """Mail server and account.

    Attributes:
        server: host and port.
        sender: address of the sender.
        user: account; empty for none.
        password_file: file with its password, read for each mail.
        tls: send over encrypted connections only (STARTTLS).
        domains: domains to which mails are sent; empty for that of the sender.
    """

    server: str
    sender: str
    user: str
    password_file: Path
    tls: bool
    domains: frozenset[str]


async def send_mail(server: MailServer | None, address: str, body: Mapping[str, Any]) -> None:
    """Send a message as a mail: its text, with the first line as the subject.

    Args:
        server: the mail server; None if the stack has none.
        address: `mailto:` and one address.
        body: the message; `text` is used.

    Raises:
        SettingsError: the stack sends no mails, or not to this address.
        UnreachableError: the mail server does not answer, or does not accept the mail.
    """
    if server is None:
        raise SettingsError(
            "This stack sends no mails; the administrator sets MAIL_SERVER and MAIL_SENDER, or use the "
            "https:// address of a webhook."
        )
    recipient = _checked(address.removeprefix(MAILTO), server)
    try:
        await to_thread.run_sync(_send, server, _mail(server.sender, recipient, str(body["text"])))
    except (OSError, smtplib.SMTPException) as error:
        raise UnreachableError(
            f"The mail server {server.server} does not accept the mail ({type(error).__name__}: {error})."
        ) from error


def _checked(recipient: str, server: MailServer) -> str:
    match = _ADDRESS.fullmatch(recipient)
    if match is None:
        raise SettingsError(f"Invalid address of a mail {recipient!r}: use one such as alice@example.org.")
    domains = server.domains or {server.sender.rpartition("@")[2].lower()}
    if match[1].lower() not in domains:
        raise SettingsError(
            f"Mails are sent to {', '.join(sorted(domains))} only, not to {match[1]}; the administrator may add it to "
            "MAIL_DOMAINS."
        )
    return recipient


def _mail(sender: str, recipient: str, text: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = sender, recipient, text.splitlines()[0][:200]
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: keeps holiday notices from being sent back
    mail.set_content(text)
    return mail


def _send(server: MailServer, mail: EmailMessage) -> None:
    host, _, port = server.server.rpartition(":")
    with smtplib.SMTP(host, int(port), timeout=_TIMEOUT_S) as connection:
        if server.tls:
            connection.starttls(context=ssl.create_default_context())
        if server.user:
            connection.login(server.user, server.password_file.read_text().strip())
        connection.send_message(mail)
