"""Addresses for messages over HTTP and from the command line: each person has one of their own."""

import httpx
import pytest
from peopled import as_person, populate, typed


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


def test_command_line_shows_and_removes_the_address(client: httpx.Client) -> None:
    token = populate(client)["alice"]
    for words in ((), ("--off",)):
        done = typed(client, "notify", *words, token=token)
        assert done.stdout == "No messages about your jobs are sent.\n"
    refused = typed(client, "notify", "https://10.0.0.1/hook", token=token)
    assert (refused.returncode, "is in a private network" in refused.stderr) == (1, True)
    verbs = [(row["verb"], row["object"]) for row in client.get("/platform/audit").json()["entries"]]
    assert ("set", "webhook of alice") in verbs
