"""Messages to people about their jobs: written with the event, delivered at least once, to allowed addresses only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from gateway_parts import Gateway, ray
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from mlplatform.errors import SettingsError
from mlplatform.gateway.audit.log import PLATFORM
from mlplatform.gateway.control.messages import Messenger
from mlplatform.gateway.jobs.messages import MessageRow
from mlplatform.gateway.jobs.states import Outcome, State, Verdict
from mlplatform.gateway.jobs.store import now
from mlplatform.gateway.jobs.submission import Submission
from mlplatform.gateway.people.store import People
from mlplatform.gateway.people.webhooks import Webhooks
from mlplatform.gateway.upstream.mail import MailSender
from mlplatform.gateway.upstream.messages import MessageSender
from mlplatform.gateway.upstream.webhooks import WebhookSender


@dataclass
class Receiver:
    """A webhook on loopback."""

    status: int = 200
    bodies: list[dict[str, Any]] = field(default_factory=list)
    address: str = ""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(found.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_address[1]}/hook"
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@asynccontextmanager
async def messenger(gateway: Gateway) -> AsyncIterator[Messenger]:
    sender = MessageSender(WebhookSender({"http", "https"}, private=True), MailSender(None))
    yield Messenger(gateway.store.engine, sender)
    await sender.close()


async def subscribe(gateway: Gateway, address: str) -> None:
    """Add alice, to whose webhook messages are sent."""
    people = People(gateway.store.engine)
    await people.add_team("vision", {}, PLATFORM)
    await people.add("alice", PLATFORM, "vision", False, False)
    await Webhooks(gateway.store.engine).set("alice", address, PLATFORM)


async def add(gateway: Gateway, job_id: str = "mine", person: str | None = "alice") -> None:
    job = Submission.model_validate({"entrypoint": "true", "submission_id": job_id}).job()
    job.person, job.team = person, "vision" if person else None
    await gateway.store.add(job)
    gateway.reconciler.wake()


async def end(gateway: Gateway, outcome: Outcome, job_id: str = "mine", number: int = 1) -> None:
    assert await gateway.store.begin_attempt(job_id)
    await gateway.store.end_attempt(job_id, number, Verdict(outcome, "It ended."), None, False)


def stored(gateway: Gateway) -> list[MessageRow]:
    with Session(gateway.store.engine) as session:
        return list(session.scalars(select(MessageRow)))


def test_owner_hears_when_job_is_lost_leaves_and_ends(gateway: Gateway, receiver: Receiver) -> None:
    async def scenario() -> None:
        await subscribe(gateway, receiver.address)
        await add(gateway)
        await end(gateway, Outcome.LOST)
        await end(gateway, Outcome.PREEMPTED, number=2)
        await end(gateway, Outcome.SUCCEEDED, number=3)
        async with messenger(gateway) as work:
            await work.deliver()

    asyncio.run(scenario())
    lost, left, ended = receiver.bodies
    assert (lost["event"], lost["status"], lost["job"], lost["person"]) == ("lost", "PENDING", "mine", "alice")
    assert lost["text"].startswith("Job mine was lost. Attempt 2 starts from the beginning; attempt 1 was lost: It")
    assert (left["event"], left["status"], left["job"], left["person"]) == ("left", "PENDING", "mine", "alice")
    assert left["text"].startswith("Job mine has left. Attempt 3 "), left["text"]
    assert left["text"].endswith(" It ended."), left["text"]
    assert (ended["event"], ended["status"], ended["text"]) == (
        "ended",
        "SUCCEEDED",
        "Job mine has succeeded. It ended.",
    )
    assert stored(gateway) == []


def test_stopped_job_and_running_control_loop_send_messages(gateway: Gateway, receiver: Receiver) -> None:
    async def scenario() -> None:
        await subscribe(gateway, receiver.address)
        await add(gateway, "waits")
        await gateway.store.request_stop("waits")
        await add(gateway)
        async with gateway.at_work():
            await gateway.until_state(State.RUNNING)
            gateway.head.jobs[gateway.head.submitted[-1]] = ray("FAILED", message="It broke.", driver_exit_code=1)
            await gateway.until_state(State.FAILED)
        async with messenger(gateway) as work:
            await work.deliver()

    asyncio.run(scenario())
    assert [body["text"] for body in receiver.bodies] == [
        "Job waits was stopped. Job was intentionally stopped.",
        "Job mine has failed. It broke.",
    ]


def test_jobs_of_others_send_nothing(gateway: Gateway, receiver: Receiver) -> None:
    async def scenario() -> None:
        await subscribe(gateway, receiver.address)
        await add(gateway, "shared", person=None)
        await add(gateway, "bobs", person="bob")
        for job_id in ("shared", "bobs"):
            await end(gateway, Outcome.FAILED, job_id)
        async with messenger(gateway) as work:
            await work.deliver()

    asyncio.run(scenario())
    assert receiver.bodies == []
    assert stored(gateway) == [], "a message that nobody wants is kept"


def test_failed_delivery_is_repeated_later_then_given_up(
    gateway: Gateway, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 500

    async def scenario() -> None:
        await subscribe(gateway, receiver.address)
        await add(gateway)
        await end(gateway, Outcome.FAILED)
        async with messenger(gateway) as work:
            await work.deliver()
            await work.deliver()  # not due yet
            assert len(receiver.bodies) == 1
            for tries in range(2, 9):
                with Session(gateway.store.engine) as session, session.begin():
                    session.execute(update(MessageRow).values(due=now() - timedelta(seconds=1)))
                await work.deliver()
                assert len(receiver.bodies) == tries

    asyncio.run(scenario())
    assert stored(gateway) == []
    assert "A message to alice about job mine is given up: The webhook at 127.0.0.1 answered 500." in caplog.text


def test_endless_answer_of_receiver_is_not_read(gateway: Gateway) -> None:
    class Endless(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(bytes(1 << 16))

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    async def scenario(address: str) -> None:
        await subscribe(gateway, address)
        await add(gateway)
        await end(gateway, Outcome.FAILED)
        async with messenger(gateway) as work, asyncio.timeout(30):
            await work.deliver()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        asyncio.run(scenario(f"http://127.0.0.1:{server.server_address[1]}/"))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert stored(gateway) == []


def test_silent_receiver_holds_up_nobody_elses_messages(gateway: Gateway, receiver: Receiver, closed_port: int) -> None:
    """Also if more of its messages wait than are delivered at once; all are given up together in the end."""

    async def scenario() -> None:
        await subscribe(gateway, receiver.address)
        await People(gateway.store.engine).add("bob", PLATFORM, "vision", False, False)
        await Webhooks(gateway.store.engine).set("bob", f"http://127.0.0.1:{closed_port}/", PLATFORM)
        row = {"event": "ended", "state": "FAILED", "text": "It ended.", "created": now(), "due": now()}
        with Session(gateway.store.engine) as session, session.begin():
            session.add_all([MessageRow(person="bob", job_id=f"his{number}", **row) for number in range(60)])
            session.add(MessageRow(person="alice", job_id="hers", **row))
        async with messenger(gateway) as work:
            await work.deliver()
            await work.deliver()
            assert [body["job"] for body in receiver.bodies] == ["hers"]
            for _ in range(7):
                with Session(gateway.store.engine) as session, session.begin():
                    earlier = now() - timedelta(hours=1)
                    session.execute(update(MessageRow).values(due=earlier, created=earlier))
                await work.deliver()

    asyncio.run(scenario())
    assert stored(gateway) == []


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
        ("https://localhost/", "is in a private network"),
        ("https://no-such-host.invalid/", "is unknown"),
    ],
)
def test_address_inside_the_network_is_rejected(address: str, sentence: str) -> None:
    async def scenario() -> None:
        sender = WebhookSender({"https"}, private=False)
        try:
            await sender.send(address, {})
        finally:
            await sender.close()

    with pytest.raises(SettingsError, match=sentence):
        asyncio.run(scenario())
