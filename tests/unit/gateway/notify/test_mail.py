"""Messages to people by mail, with a real mail server on loopback that accepts one account."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from mlplatform.errors import SettingsError, UnreachableError
from mlplatform.local.processes import free_ports
from mlplatform_gateway.notify.sender import MailServer, send_mail

RECEIVER = Path(__file__).parents[3] / "scripts" / "alert_receiver.py"

BODY = {"text": "Job 17 has SUCCEEDED.\nIt ran for 3 h.", "job": "17"}


@pytest.fixture
def received() -> Iterator[tuple[int, IO[str]]]:
    """A mail server: its port, and the lines that it prints for each mail."""
    smtp, http = free_ports(2)
    command = [sys.executable, "-u", str(RECEIVER), str(smtp), str(http), "platform", "right"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert "listening" in process.stdout.readline()
        yield smtp, process.stdout
        process.terminate()


def server(folder: Path, port: int, **others: Any) -> MailServer:
    file = folder / "password"
    file.write_text("right\n")
    return replace(
        MailServer(f"127.0.0.1:{port}", "platform@example.org", "platform", file, tls=False, domains=frozenset()),
        **others,
    )


def test_message_arrives_as_mail(tmp_path: Path, received: tuple[int, IO[str]]) -> None:
    port, lines = received
    asyncio.run(send_mail(server(tmp_path, port), "mailto:alice@example.org", BODY))
    mail = json.loads(lines.readline())
    assert mail["to"] == ["alice@example.org"]
    assert mail["title"] == "Job 17 has SUCCEEDED."
    assert mail["text"].splitlines() == BODY["text"].splitlines()


def test_wrong_account_and_plain_server_are_reported(tmp_path: Path, received: tuple[int, IO[str]]) -> None:
    port, _ = received
    for others in ({"user": "somebody"}, {"tls": True}):
        with pytest.raises(UnreachableError, match=f"The mail server 127.0.0.1:{port} does not accept the mail"):
            asyncio.run(send_mail(server(tmp_path, port, **others), "mailto:alice@example.org", BODY))


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("mailto:alice@elsewhere.org", "Mails are sent to example.org only, not to elsewhere.org"),
        ("mailto:alice", "Invalid address of a mail 'alice'"),
        ("mailto:alice@example.org,bob@example.org", "Invalid address"),
        ("mailto:alice@example.org\r\nBcc: bob@example.org", "Invalid address"),
        ("mailto:alice@example.org?bcc=bob@example.org", "Invalid address"),
    ],
)
def test_address_that_is_not_allowed_is_refused(tmp_path: Path, address: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        asyncio.run(send_mail(server(tmp_path, 1), address, BODY))


def test_other_domains_may_be_allowed(tmp_path: Path, received: tuple[int, IO[str]]) -> None:
    port, lines = received
    elsewhere = server(tmp_path, port, domains=frozenset({"elsewhere.org"}))
    asyncio.run(send_mail(elsewhere, "mailto:alice@Elsewhere.org", BODY))
    assert json.loads(lines.readline())["to"] == ["alice@Elsewhere.org"]
    with pytest.raises(SettingsError, match=r"to elsewhere\.org only"):
        asyncio.run(send_mail(elsewhere, "mailto:alice@example.org", BODY))


def test_stack_without_mail_server_says_so() -> None:
    with pytest.raises(SettingsError, match="the administrator sets MAIL_SERVER"):
        asyncio.run(send_mail(None, "mailto:alice@example.org", BODY))
