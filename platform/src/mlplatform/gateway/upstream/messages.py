"""Delivery of messages to people, to a webhook or by mail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlplatform.gateway.upstream.mail import MAILTO, MailSender
from mlplatform.gateway.upstream.webhooks import WebhookSender


class MessageSender:
    """Senders by kind of address."""

    def __init__(self, webhooks: WebhookSender, mail: MailSender) -> None:
        self._webhooks = webhooks
        self._mail = mail

    async def close(self) -> None:
        """Close the connections."""
        await self._webhooks.close()

    async def send(self, address: str, body: Mapping[str, Any]) -> None:
        """Send a message.

        Args:
            address: `mailto:` and an address, or the URL of a webhook.
            body: the message, with its text in `text`.

        Raises:
            SettingsError: the address is not allowed.
            UnreachableError: the receiver does not answer, or does not accept the message.
        """
        sender = self._mail if address.startswith(MAILTO) else self._webhooks
        await sender.send(address, body)
