"""Addresses to which messages are sent: those of public networks only."""

import pytest

from mlplatform.errors import SettingsError
from mlplatform_gateway.notify.sender import MessageSender, is_public


@pytest.mark.parametrize(
    "number",
    [
        *("64:ff9b::a00:1", "64:ff9b:1::7f00:1"),  # NAT64 of 10.0.0.1 and 127.0.0.1
        "2002:a00:1::1",  # 6to4 of 10.0.0.1
        "2001:0:53aa:64c::1",  # Teredo
        *("fec0::1", "ff0e::1", "ff02::1%eth0", "::ffff:8.8.8.8", "::8.8.8.8", "4000::1", "fe80::1", "fd00::1", "::1"),
        *("224.0.0.251", "239.255.255.250", "169.254.169.254", "100.64.0.1", "0.0.0.0", "255.255.255.255"),
    ],
)
def test_address_that_leads_elsewhere_is_not_public(number: str) -> None:
    assert not is_public(number)


@pytest.mark.parametrize("number", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001:82a::200e"])
def test_address_of_internet_is_public(number: str) -> None:
    assert is_public(number)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("ftp://example.org/", "use https:// with a host and no user"),
        ("http://example.org/", "use https:// with a host and no user"),
        ("https://alice:secret@example.org/", "use https:// with a host and no user"),
        ("https://127.0.0.1/", "is in a private network"),
        ("https://[::1]/", "is in a private network"),
        ("https://10.0.0.1:9000/", "is in a private network"),
        ("https://169.254.169.254/latest", "is in a private network"),
        ("https://[64:ff9b::a9fe:a9fe]/latest/meta-data", "is in a private network"),
        ("https://localhost/", "is in a private network"),
        ("https://no-such-host.invalid/", "is unknown"),
        (f"https://{'a' * 64}.example.org/", "is unknown"),
    ],
)
async def test_address_inside_the_network_is_rejected(address: str, sentence: str) -> None:
    sender = MessageSender({"https"}, private=False)
    with pytest.raises(SettingsError, match=sentence):
        await sender.send(address, {})
    await sender.close()
