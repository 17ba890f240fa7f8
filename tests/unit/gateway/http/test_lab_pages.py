"""JupyterLab's pages: the ticket, the cookie, what jobs get of a browser's request, and who is refused."""

import asyncio
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import httpx
import pytest
from peopled import as_person, populate, submit, typed
from ray_head import BOUND_S, talking
from stand_in_lab import LAB_TOKEN, Agent, agent
from starlette.requests import HTTPConnection
from started_gateway import StartedGateway
from waiting import wait_for
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection

from mlplatform_gateway.dev import lab
from mlplatform_gateway.dev.pages import name_beside
from mlplatform_gateway.http.auth import COOKIE
from mlplatform_gateway.jobs.decisions import Decisions
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.queue.planner.queue import Preempt

ENDED = "This visit has ended: open JupyterLab again, with `mlplatform dev open`."

UPGRADE = {
    **{"Connection": "Upgrade", "Upgrade": "websocket"},
    **{"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "QUJDREVGR0hJSktMTU5PUA=="},
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Agent]:
    with agent(tmp_path) as running:
        yield running


@dataclass
class Opened:
    """A browser without cookies, and alice, whose job `hers` runs."""

    browser: httpx.Client
    alice: httpx.Client
    tokens: dict[str, str]

    def follow(self, address: SplitResult) -> httpx.Response:
        """Open an address in the browser, which stays at its host."""
        self.browser.headers["Host"] = address.netloc
        return self.browser.get(f"{address.path}?{address.query}")

    def enter(self) -> httpx.Response:
        """Follow the address that alice gets for the browser."""
        return self.follow(address_for(self.alice))

    def talking(self, headers: dict[str, str]) -> ClientConnection:
        """A WebSocket of the browser."""
        connection = socket.create_connection((self.browser.base_url.host, self.browser.base_url.port or 0), BOUND_S)
        page = f"http://{self.browser.headers['Host']}"
        return talking(page, "/api/channels", sock=connection, additional_headers=headers)


def address_for(person: httpx.Client, job_id: str = "hers", host: str = "127.0.0.1:8265") -> SplitResult:
    answer = person.post(f"/platform/jobs/{job_id}/lab", headers={"Host": host})
    assert answer.status_code == 200, answer.text
    return urlsplit(answer.json()["address"])


def run_job(started: StartedGateway, job_id: str, node: Agent) -> None:
    """Let Ray run the first attempt of a job on a node."""
    ray = {"driver_node_id": "n1", "driver_agent_http_address": node.address, "job_id": "01000000"}
    asyncio.run(started.store.begin_attempt(job_id))
    asyncio.run(started.store.seen(job_id, 1, {**ray, "driver_info": None, "status": "RUNNING"}, "worker"))


@pytest.fixture
def opened(started: StartedGateway, client: httpx.Client, node: Agent) -> Iterator[Opened]:
    tokens = populate(client)
    with as_person(client, tokens["alice"]) as alice, as_person(client, "") as browser:
        assert submit(alice, "hers").is_success
        run_job(started, "hers", node)
        yield Opened(browser, alice, tokens)


def test_ticket_leads_to_page_once(opened: Opened, node: Agent) -> None:
    address = address_for(opened.alice)
    assert re.fullmatch(r"http://[0-9a-f]{16}\.lab\.localhost:8265/\?ticket=\S{43}", address.geturl())
    entered = opened.follow(address)
    assert (entered.status_code, entered.headers["location"]) == (303, "/lab")
    cookie = {part.strip() for part in entered.headers["set-cookie"].lower().split(";")}
    assert {"httponly", "samesite=lax"} <= cookie
    assert not any(part.startswith("domain") for part in cookie)
    assert opened.browser.get("/lab?x=1").json()["target"] == "/lab?x=1"
    assert node.commands == ["exec python -m mlplatform.node.lab"]
    opened.browser.cookies.clear()
    again = opened.follow(address)
    assert (again.status_code, again.text) == (403, ENDED)


def test_cookie_of_one_visit_opens_no_other(opened: Opened) -> None:
    opened.enter()
    other = address_for(opened.alice)
    assert opened.browser.get("/lab", headers={"Host": other.netloc}).text == ENDED
    assert opened.browser.get("/lab").status_code == 200


def test_job_gets_no_cookie_or_token_of_browser(opened: Opened) -> None:
    opened.enter()
    opened.browser.cookies.set(COOKIE, "session")
    sent = opened.browser.post("/api", content=b"text", headers={"Authorization": "Bearer mine"}).json()
    headers = {name.lower(): value for name, value in sent["headers"]}
    assert "cookie" not in headers
    assert headers["authorization"] == f"Bearer {LAB_TOKEN}"
    assert sent["size"] == 4


def test_messages_of_kernel_pass_both_ways(opened: Opened) -> None:
    opened.enter()
    own = {"Cookie": "; ".join(f"{name}={value}" for name, value in opened.browser.cookies.items())}
    with opened.talking(own) as kernel:
        assert kernel.recv(BOUND_S) == "hello"
        kernel.send("1 + 1")
        assert kernel.recv(BOUND_S) == "1 + 1"
    for others in ({}, {**own, "Origin": "http://mlflow.localhost:8000"}):
        with pytest.raises(InvalidStatus) as refused, opened.talking(others):
            pass
        assert refused.value.response.status_code == 403


def test_page_of_another_origin_changes_nothing(opened: Opened) -> None:
    opened.enter()
    refused = opened.browser.post("/api", headers={"Origin": "http://localhost:8265"})
    assert (refused.status_code, refused.text) == (403, "Pages of 'http://localhost:8265' may not use JupyterLab.")


def test_lab_that_has_ended_starts_again(opened: Opened, node: Agent) -> None:
    opened.enter()
    assert opened.browser.get("/lab").status_code == 200
    node.end_commands()
    wait_for(lambda: opened.browser.get("/lab").status_code == 200 and len(node.commands) == 2, "a second start")


def test_connection_ends_when_nobody_uses_it(opened: Opened, node: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "_UNUSED_SECONDS", 0.1)
    opened.enter()
    assert opened.browser.get("/lab").status_code == 200
    wait_for(lambda: not node.open_commands, "the end of the connection")
    assert opened.browser.get("/lab").status_code == 200
    assert len(node.commands) == 2


def test_revoked_token_closes_pages(opened: Opened) -> None:
    opened.enter()
    (token,) = opened.alice.get("/platform/tokens").json()["tokens"]
    assert opened.alice.delete(f"/platform/tokens/{token['id']}").is_success
    assert opened.browser.get("/lab").status_code == 403


def test_job_of_same_id_of_another_stays_closed(
    opened: Opened, started: StartedGateway, client: httpx.Client, node: Agent
) -> None:
    opened.enter()
    started.end(job_id="hers")
    assert client.delete("/api/jobs/hers").is_success
    started.add("hers", attempts=0)
    run_job(started, "hers", node)
    refused = opened.browser.get("/lab")
    assert (refused.status_code, refused.text[:41]) == (403, "Job hers belongs to the shared token, so ")


def test_page_learns_until_when_job_stays(opened: Opened, started: StartedGateway) -> None:
    opened.enter()
    assert opened.browser.get("/mlplatform/notice").json() is None
    deadline = now() + timedelta(seconds=120)
    leave = Preempt("hers", deadline.timestamp(), "owed", "Team audio takes back 1 GPU of its share.")
    asyncio.run(Decisions(started.store.engine).preempt(leave))
    said = opened.browser.get("/mlplatform/notice").json()
    assert (said["why"], datetime.fromisoformat(said["until"])) == (leave.why, deadline)


def test_team_without_shells_has_no_pages(opened: Opened, client: httpx.Client) -> None:
    opened.enter()
    changed = typed(client, "teams", "set", "vision", "--no-shells")
    assert changed.returncode == 0, changed.stderr
    assert "no shells" in typed(client, "teams", "list").stdout
    refused = "Team vision allows no shells in its jobs; administrators can change that."
    assert opened.browser.get("/lab").text == refused
    shell = opened.alice.get("/platform/jobs/hers/ssh?key=ssh-ed25519%20" + 68 * "A", headers=UPGRADE)
    for answer in (opened.alice.post("/platform/jobs/hers/lab"), shell):
        assert (answer.status_code, answer.text) == (403, refused)
    client.patch("/platform/teams/vision", json={"shells": True})
    assert opened.browser.get("/lab").status_code == 200


def test_refused_stranger_is_in_audit_log(client: httpx.Client, opened: Opened) -> None:
    with as_person(client, opened.tokens["bob"]) as bob:
        assert bob.post("/platform/jobs/hers/lab").status_code == 403
    entries = client.get("/platform/audit").json()["entries"]
    assert ("bob", "refused shell", "job hers") in {(row["principal"], row["verb"], row["object"]) for row in entries}


def test_session_needs_its_key_for_a_visit(client: httpx.Client, opened: Opened) -> None:
    with as_person(client, "") as browser:
        led = browser.post("/platform/login", data={"token": opened.tokens["alice"]})
        key = {"X-MLPlatform-Key": led.headers["location"].partition("#key=")[2]}
        assert browser.post("/platform/jobs/hers/lab").status_code == 405
        assert browser.post("/platform/jobs/hers/lab", headers={"X-MLPlatform-Key": "0" * 64}).status_code == 401
        begun = browser.post("/platform/jobs/hers/lab", headers={**key, "Host": "localhost:8265"})
        assert begun.status_code == 200, begun.text
        opened.follow(urlsplit(begun.json()["address"]))
        assert opened.browser.get("/lab").status_code == 200
        browser.post("/platform/logout")
    assert opened.browser.get("/lab").status_code == 403


def test_ended_job_is_named(opened: Opened, started: StartedGateway) -> None:
    started.end(job_id="hers")
    answer = opened.alice.post("/platform/jobs/hers/lab")
    assert (answer.status_code, answer.text) == (409, "Job hers is SUCCEEDED; a shell can be opened while it runs.")


@pytest.mark.parametrize("host", ["localhost:9265", "ray.localhost:9265", "127.0.0.1:9265"])
def test_pages_have_names_below_one_of_this_machine(opened: Opened, host: str) -> None:
    assert address_for(opened.alice, host=host).netloc.partition(".")[2] == "lab.localhost:9265"


@pytest.mark.parametrize("host", ["192.168.1.7:8265", "[::1]:8265", "gateway:8265", "ray.example.org"])
def test_gateway_without_names_is_refused_with_way_out(opened: Opened, host: str) -> None:
    answer = opened.alice.post("/platform/jobs/hers/lab", headers={"Host": host})
    assert answer.status_code == 400
    assert "has none below it: reach the gateway as localhost" in answer.text


@pytest.mark.parametrize(
    ("host", "name"),
    [("ray.ml.example.org", "lab.ml.example.org"), ("ml.example.org:8265", "lab.ml.example.org:8265")],
)
def test_pages_have_names_below_domain_of_entrance(host: str, name: str) -> None:
    scope = {"type": "http", "scheme": "https", "path": "/", "headers": [(b"host", host.encode())], "query_string": b""}
    assert name_beside(HTTPConnection(scope)) == name


def test_domain_that_begins_with_lab_is_the_gateway(client: httpx.Client) -> None:
    assert client.get("/platform/health", headers={"Host": "lab.example.org:8265"}).status_code == 200
