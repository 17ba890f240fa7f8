"""Addresses for messages over HTTP and from the command line: each person has one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from peopled import as_person, populate
from started_gateway import StartedGateway


@pytest.fixture
def client(started: StartedGateway) -> Iterator[httpx.Client]:
    with started.running() as client:
        yield client


def test_shared_token_has_no_messages(client: httpx.Client) -> None:
    for answer in (client.get("/platform/webhook"), client.put("/platform/webhook", json={"url": None})):
        assert (answer.status_code, answer.text[:28]) == (400, "Messages are for people: log")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"url": "http://example.org/"}, "Invalid address of a webhook: use https://"),
        ({"url": "https://127.0.0.1/"}, "The host of the webhook, 127.0.0.1, is in a private network"),
        ({"url": 5}, "url=5 is not valid"),
        ({}, "url is not valid"),
    ],
)
def test_invalid_address_is_not_stored(body: dict[str, object], sentence: str, client: httpx.Client) -> None:
    with as_person(client, populate(client)["alice"]) as alice:
        answer = alice.put("/platform/webhook", json=body)
        assert (answer.status_code, answer.text[: len(sentence)]) == (400, sentence)
        assert alice.get("/platform/webhook").json() == {"url": None}


def test_command_line_shows_and_removes_the_address(client: httpx.Client, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(populate(client)["alice"])
    environment = {**os.environ, "RAY_ADDRESS": str(client.base_url), "RAY_AUTH_TOKEN_PATH": str(token)}

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mlplatform", "notify", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert typed().stdout == "No messages about your jobs are sent.\n"
    assert typed("--off").stdout == "No messages about your jobs are sent.\n"
    refused = typed("https://10.0.0.1/hook")
    assert (refused.returncode, "is in a private network" in refused.stderr) == (1, True)
    verbs = [(row["verb"], row["object"]) for row in client.get("/platform/audit").json()["entries"]]
    assert ("set", "webhook of alice") in verbs
