"""Addresses to which messages are sent: those of public networks only."""

from __future__ import annotations

import asyncio

import pytest

from mlplatform.errors import SettingsError
from mlplatform.gateway.upstream.webhooks import WebhookSender, is_public


@pytest.mark.parametrize(
    "number",
    [
        "64:ff9b::a00:1",  # NAT64 of 10.0.0.1
        "64:ff9b:1::7f00:1",
        "2002:a00:1::1",  # 6to4 of 10.0.0.1
        "2001:0:53aa:64c::1",  # Teredo
        "fec0::1",
        "ff0e::1",
        "ff02::1%eth0",
        "::ffff:8.8.8.8",
        "::8.8.8.8",
        "4000::1",
        "fe80::1",
        "fd00::1",
        "::1",
        "224.0.0.251",
        "239.255.255.250",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "255.255.255.255",
    ],
)
def test_address_that_leads_elsewhere_is_not_public(number: str) -> None:
    assert not is_public(number)


@pytest.mark.parametrize("number", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001:82a::200e"])
def test_address_of_internet_is_public(number: str) -> None:
    assert is_public(number)


def test_webhook_at_translated_private_address_is_refused() -> None:
    async def scenario() -> None:
        sender = WebhookSender(["https"], private=False)
        try:
            await sender.send("https://[64:ff9b::a9fe:a9fe]/latest/meta-data", {})
        finally:
            await sender.close()

    with pytest.raises(SettingsError, match="is in a private network"):
        asyncio.run(scenario())
