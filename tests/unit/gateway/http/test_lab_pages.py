"""JupyterLab's pages: the ticket, the cookie, what jobs get of a browser's request, and who is refused."""

import asyncio
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx
import pytest
from peopled import as_person, populate, submit, typed
from ray_head import BOUND_S, NO_TLS, TOKEN, talking
from stand_in_lab import LAB_TOKEN, Agent, agent
from started_gateway import StartedGateway
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection

from mlplatform_gateway.http.auth import COOKIE, LOGIN_PAGE
from mlplatform_gateway.jobs.decisions import Decisions
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.queue.planner.queue import Preempt

LAB = "lab.localhost:8265"

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
    """A browser without cookies at the name of the pages, and alice, whose job `hers` runs."""

    browser: httpx.Client
    alice: httpx.Client
    tokens: dict[str, str]

    def enter(self) -> httpx.Response:
        """Follow the address that alice gets for the browser."""
        return self.browser.get(target(address_for(self.alice)))

    def talking(self, headers: dict[str, str]) -> ClientConnection:
        """A WebSocket of the browser."""
        connection = socket.create_connection((self.browser.base_url.host, self.browser.base_url.port or 0), BOUND_S)
        return talking(f"http://{LAB}", "/hers/api/channels", sock=connection, additional_headers=headers)


def address_for(person: httpx.Client, job_id: str = "hers", host: str = "127.0.0.1:8265") -> SplitResult:
    answer = person.get(f"/platform/jobs/{job_id}/lab", headers={"Host": host})
    assert answer.status_code == 200, answer.text
    return urlsplit(answer.json()["address"])


def target(address: SplitResult) -> str:
    return f"{address.path}?{address.query}"


def run_job(started: StartedGateway, job_id: str, node: Agent, number: int = 1) -> None:
    """Let Ray run an attempt of a job on a node."""
    ray = {"driver_node_id": "n1", "driver_agent_http_address": node.address, "job_id": "01000000"}
    asyncio.run(started.store.begin_attempt(job_id))
    asyncio.run(started.store.seen(job_id, number, {**ray, "driver_info": None, "status": "RUNNING"}, "worker"))


@pytest.fixture
def opened(started: StartedGateway, client: httpx.Client, node: Agent) -> Iterator[Opened]:
    tokens = populate(client)
    with as_person(client, tokens["alice"]) as alice, as_person(client, "") as browser:
        assert submit(alice, "hers").is_success
        run_job(started, "hers", node)
        browser.headers["Host"] = LAB
        yield Opened(browser, alice, tokens)


def test_ticket_leads_to_page_once(opened: Opened, node: Agent) -> None:
    address = address_for(opened.alice)
    assert (address.scheme, address.netloc, address.path) == ("http", LAB, "/hers/")
    entered = opened.browser.get(target(address))
    assert (entered.status_code, entered.headers["location"]) == (303, "/hers/lab")
    cookie = entered.headers["set-cookie"].lower()
    assert {"httponly", "path=/hers/", "samesite=lax"} <= {part.strip() for part in cookie.split(";")}
    shown = opened.browser.get("/hers/lab?x=1")
    assert shown.json()["target"] == "/hers/lab?x=1"
    assert node.commands == ["exec python -m mlplatform.node.lab /hers/"]
    opened.browser.cookies.clear()
    again = opened.browser.get(target(address))
    assert (again.status_code, again.text.split(" from")[0]) == (403, "Open JupyterLab")


def test_job_gets_no_cookie_or_token_of_browser(opened: Opened) -> None:
    opened.enter()
    opened.browser.cookies.set(COOKIE, "session")
    sent = opened.browser.post("/hers/api", content=b"text", headers={"Authorization": "Bearer mine"}).json()
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
    refused = opened.browser.post("/hers/api", headers={"Origin": "http://localhost:8265"})
    assert (refused.status_code, refused.text) == (403, "Pages of 'http://localhost:8265' may not use JupyterLab.")


def test_revoked_token_closes_pages(opened: Opened) -> None:
    opened.enter()
    own = opened.alice.get("/platform/tokens").json()
    token = own["tokens"][0] if isinstance(own, dict) else own[0]
    assert opened.alice.delete(f"/platform/tokens/{token['id']}").is_success
    assert opened.browser.get("/hers/lab").status_code == 403


def test_job_of_same_id_of_another_stays_closed(
    opened: Opened, started: StartedGateway, client: httpx.Client, node: Agent
) -> None:
    opened.enter()
    started.end(job_id="hers")
    assert client.delete("/api/jobs/hers").is_success
    started.add("hers", attempts=0)
    run_job(started, "hers", node)
    refused = opened.browser.get("/hers/lab")
    assert (refused.status_code, refused.text[:41]) == (403, "Job hers belongs to the shared token, so ")


def test_page_is_told_until_when_job_stays(opened: Opened, started: StartedGateway) -> None:
    opened.enter()
    with opened.browser.stream("GET", "/hers/mlplatform/notice") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert next(lines) == ":"
        deadline = now() + timedelta(seconds=120)
        leave = Preempt("hers", deadline.timestamp(), "owed", "Team audio takes back 1 GPU of its share.")
        asyncio.run(Decisions(started.store.engine).preempt(leave))
        said = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))
    assert (said["why"], datetime.fromisoformat(said["until"])) == (leave.why, deadline)


def test_team_without_shells_has_no_pages(opened: Opened, client: httpx.Client) -> None:
    opened.enter()
    changed = typed(client, "teams", "set", "vision", "--no-shells")
    assert changed.returncode == 0, changed.stderr
    assert "no shells" in typed(client, "teams", "list").stdout
    refused = "Team vision allows no shells in its jobs; administrators can change that."
    assert opened.browser.get("/hers/lab").text == refused
    for path in ("lab", "ssh?key=ssh-ed25519%20" + 68 * "A"):
        answer = opened.alice.get(f"/platform/jobs/hers/{path}", headers=UPGRADE if "ssh" in path else None)
        assert (answer.status_code, answer.text) == (403, refused)
    client.patch("/platform/teams/vision", json={"shells": True})
    assert opened.browser.get("/hers/lab").status_code == 200


def test_refused_stranger_is_in_audit_log(client: httpx.Client, opened: Opened) -> None:
    with as_person(client, opened.tokens["bob"]) as bob:
        assert bob.get("/platform/jobs/hers/lab").status_code == 403
    entries = client.get("/platform/audit").json()["entries"]
    assert ("bob", "refused shell", "job hers") in {(row["principal"], row["verb"], row["object"]) for row in entries}


def test_ended_job_is_named(opened: Opened, started: StartedGateway) -> None:
    started.end(job_id="hers")
    answer = opened.alice.get("/platform/jobs/hers/lab")
    assert (answer.status_code, answer.text) == (409, "Job hers is SUCCEEDED; a shell can be opened while it runs.")


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:9265", "lab.localhost:9265"),
        ("ray.localhost:8265", "lab.localhost:8265"),
        ("ray.ml.example.org", "lab.ml.example.org"),
    ],
)
def test_pages_have_name_of_their_own(opened: Opened, host: str, name: str) -> None:
    assert address_for(opened.alice, host=host).netloc == name


def test_address_without_names_is_refused_with_way_out(opened: Opened) -> None:
    answer = opened.alice.get("/platform/jobs/hers/lab", headers={"Host": "192.168.1.7:8265"})
    assert answer.status_code == 400
    assert "192.168.1.7 has none below it: open the gateway as localhost" in answer.text


def test_browser_is_led_from_front_page(started: StartedGateway, client: httpx.Client, node: Agent) -> None:
    run_job(started, "mine", node, number=1)
    options: Any = {"headers": {"User-Agent": "Mozilla/5.0"}, "verify": NO_TLS, "timeout": BOUND_S}
    with httpx.Client(base_url=client.base_url, **options) as browser:
        browser.post(LOGIN_PAGE, data={"token": TOKEN})
        assert 'href="/platform/jobs/mine/lab"' in browser.get("/platform/").text
        led = browser.get("/platform/jobs/mine/lab")
    assert led.status_code == 303
    assert led.headers["location"].startswith("http://lab.localhost:")
