"""Delivery of messages by mail or to webhooks, which people choose, and to no service of the stack or its network.

`store.announce` writes their text.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import smtplib
import socket
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import httpx
from anyio import to_thread

from mlplatform.errors import SettingsError, UnreachableError

MAILTO = "mailto:"
_MAIL_SECONDS = 10.0

_ADDRESS = re.compile(r"[A-Za-z0-9._%+-]{1,64}@([A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+)", re.ASCII)
"""Plain addresses only: quoted ones and comments would let a text look like another address."""
_TIMEOUT = httpx.Timeout(10.0, connect=5.0)

_ANSWER_SECONDS = 15.0
"""Time for the whole answer, of which each part may come just before the timeout."""

_IPV6, _6TO4 = ipaddress.ip_network("2000::/3"), ipaddress.ip_network("2002::/16")
"""Addresses that IANA assigns to hosts, and those of them that hold an IPv4 address, be it a private one."""


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
        server: None if the stack has none.
        address: `mailto:` and one address.

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
    with smtplib.SMTP(host, int(port), timeout=_MAIL_SECONDS) as connection:
        if server.tls:
            connection.starttls(context=ssl.create_default_context())
        if server.user:
            connection.login(server.user, server.password_file.read_text().strip())
        connection.send_message(mail)


class MessageSender:
    """Client for the addresses of people.

    Args:
        schemes: allowed schemes of webhooks.
        private: allow webhooks in private networks, loopback included.
        mail: the mail server; None if the stack has none.
    """

    def __init__(self, schemes: Collection[str], private: bool, mail: MailServer | None = None) -> None:
        self._schemes = schemes
        self._mail = mail
        self._private = private
        self._http = httpx.AsyncClient(timeout=_TIMEOUT)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, address: str, body: Mapping[str, Any]) -> None:
        """Send a message.

        Args:
            address: `mailto:` and an address, or the URL of a webhook, which gets the message as JSON.
            body: the message, with its text in `text`.

        Raises:
            SettingsError: the form, the scheme or the network of the address is not allowed, or its name is unknown.
            UnreachableError: the receiver does not answer, or not with success.
        """
        if address.startswith(MAILTO):
            return await send_mail(self._mail, address, body)
        url, host = await self._resolved(address)
        # Connected by number: between the check and the connection, the name could get another one.
        extensions = {"sni_hostname": host} if url.scheme == "https" else {}
        headers = {"Host": httpx.URL(address).netloc.decode()}
        try:
            # Of the answer, only the status is read: its body may be endless.
            async with (
                asyncio.timeout(_ANSWER_SECONDS),
                self._http.stream("POST", url, json=body, headers=headers, extensions=extensions) as response,
            ):
                status, is_success = response.status_code, response.is_success
        except (httpx.HTTPError, TimeoutError) as error:
            raise UnreachableError(f"The webhook at {host} does not answer ({type(error).__name__}).") from error
        if not is_success:
            raise UnreachableError(f"The webhook at {host} answered {status}.")

    async def _resolved(self, address: str) -> tuple[httpx.URL, str]:
        """Return an address with the number of its host, and the host's name."""
        try:
            url = httpx.URL(address)
        except httpx.InvalidURL as error:
            raise SettingsError(f"Invalid address of a webhook: {error}.") from error
        if url.scheme not in self._schemes or not url.host or url.userinfo:
            allowed = " or ".join(f"{scheme}://" for scheme in sorted(self._schemes))
            raise SettingsError(f"Invalid address of a webhook: use {allowed} with a host and no user.")
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        try:
            found = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            # The latter for names that no name server can have, such as a..b.
            reason = getattr(error, "strerror", error)
            raise SettingsError(f"The host of the webhook, {url.host}, is unknown ({reason}).") from error
        numbers = [str(entry[4][0]) for entry in found]
        if not self._private and not all(map(is_public, numbers)):
            raise SettingsError(
                f"The host of the webhook, {url.host}, is in a private network; the administrator may allow that with "
                "WEBHOOK_PRIVATE_ADDRESSES=true."
            )
        return url.copy_with(host=numbers[0]), url.host


def is_public(number: str) -> bool:
    """Return whether an address is that of a host of the internet, and none that a router translates (NAT64, 6to4)."""
    address = ipaddress.ip_address(number)
    if address.version == 6 and (address not in _IPV6 or address in _6TO4):
        return False
    return address.is_global and not address.is_multicast
