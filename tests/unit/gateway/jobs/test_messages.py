"""Messages to people about their jobs: written with the event, and delivered at least once."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from gateway_parts import Gateway
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from mlplatform_gateway.audit.store import PLATFORM
from mlplatform_gateway.jobs.states import Outcome, Verdict
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.notify.loop import Messenger
from mlplatform_gateway.notify.sender import MessageSender
from mlplatform_gateway.notify.store import MessageRow
from mlplatform_gateway.people.store import People


@dataclass
class Receiver:
    """A webhook on loopback, whose answer may have no end."""

    status: int = 200
    endless: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    address: str = ""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(found.status)
            if not found.endless:
                self.send_header("Content-Length", "0")
            self.end_headers()
            with suppress(OSError):
                while found.endless:
                    self.wfile.write(bytes(1 << 16))

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


@pytest.fixture
async def messenger(idle: Gateway, receiver: Receiver) -> AsyncIterator[Messenger]:
    """Sends the messages of a gateway with a person alice, to whose webhook they go."""
    people = People(idle.store.engine)
    await people.add_team("vision", {}, PLATFORM)
    await people.add("alice", PLATFORM, "vision", False, False)
    await People(idle.store.engine).set_webhook("alice", receiver.address, PLATFORM)
    sender = MessageSender({"http", "https"}, private=True)
    yield Messenger(idle.store.engine, sender)
    await sender.close()


async def end(gateway: Gateway, outcome: Outcome, job_id: str = "mine", number: int = 1) -> None:
    assert await gateway.store.begin_attempt(job_id)
    await gateway.store.end_attempt(job_id, number, Verdict(outcome, "It ended."), None, False)


def stored(gateway: Gateway) -> list[MessageRow]:
    with Session(gateway.store.engine) as session:
        return list(session.scalars(select(MessageRow)))


async def test_owner_hears_when_job_is_lost_leaves_and_ends(
    idle: Gateway, messenger: Messenger, receiver: Receiver
) -> None:
    await idle.submit("alice", "vision")
    for number, outcome in enumerate((Outcome.LOST, Outcome.PREEMPTED, Outcome.SUCCEEDED), 1):
        await end(idle, outcome, number=number)
    await messenger.deliver()
    assert [(body["event"], body["status"], body["job"], body["person"]) for body in receiver.bodies] == [
        ("lost", "PENDING", "mine", "alice"),
        ("left", "PENDING", "mine", "alice"),
        ("ended", "SUCCEEDED", "mine", "alice"),
    ]
    lost, left, ended = (body["text"] for body in receiver.bodies)
    assert lost.startswith("Job mine was lost. Attempt 2 starts from the beginning; attempt 1 was lost: It")
    assert left.startswith("Job mine has left. Attempt 3 ")
    assert left.endswith(" It ended.")
    assert ended == "Job mine has succeeded. It ended."
    assert stored(idle) == []


async def test_stopped_job_and_running_control_loop_send_messages(
    idle: Gateway, messenger: Messenger, receiver: Receiver
) -> None:
    await idle.submit("alice", "vision", submission_id="waits")
    await idle.store.request_stop("waits")
    async with idle.at_work():
        await idle.started(person="alice", team="vision")
        await idle.end("FAILED", message="It broke.", driver_exit_code=1)
    await messenger.deliver()
    assert [body["text"] for body in receiver.bodies] == [
        "Job waits was stopped. Job was intentionally stopped.",
        "Job mine has failed. It broke.",
    ]


async def test_jobs_of_others_send_nothing(idle: Gateway, messenger: Messenger, receiver: Receiver) -> None:
    for job_id, person, team in (("shared", None, None), ("bobs", "bob", "vision")):
        await idle.submit(person, team, submission_id=job_id)
        await end(idle, Outcome.FAILED, job_id)
    await messenger.deliver()
    assert receiver.bodies == []
    assert stored(idle) == [], "a message that nobody wants is kept"


async def test_failed_delivery_is_repeated_later_then_given_up(
    idle: Gateway, messenger: Messenger, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 500
    await idle.submit("alice", "vision")
    await end(idle, Outcome.FAILED)
    await messenger.deliver()
    await messenger.deliver()  # not due yet
    assert len(receiver.bodies) == 1
    for tries in range(2, 9):
        with Session(idle.store.engine) as session, session.begin():
            session.execute(update(MessageRow).values(due=now() - timedelta(seconds=1)))
        await messenger.deliver()
        assert len(receiver.bodies) == tries
    assert stored(idle) == []
    assert "A message to alice about job mine is given up: The webhook at 127.0.0.1 answered 500." in caplog.text


async def test_endless_answer_of_receiver_is_not_read(idle: Gateway, messenger: Messenger, receiver: Receiver) -> None:
    receiver.endless = True
    await idle.submit("alice", "vision")
    await end(idle, Outcome.FAILED)
    async with asyncio.timeout(30):
        await messenger.deliver()
    assert stored(idle) == []


async def test_silent_receiver_holds_up_nobody_elses_messages(
    idle: Gateway, messenger: Messenger, receiver: Receiver, closed_port: int
) -> None:
    """Also if more of its messages wait than are delivered at once; all are given up together in the end."""
    await People(idle.store.engine).add("bob", PLATFORM, "vision", False, False)
    await People(idle.store.engine).set_webhook("bob", f"http://127.0.0.1:{closed_port}/", PLATFORM)
    row = {"event": "ended", "state": "FAILED", "text": "It ended.", "created": now(), "due": now()}
    with Session(idle.store.engine) as session, session.begin():
        session.add_all([MessageRow(person="bob", job_id=f"his{number}", **row) for number in range(60)])
        session.add(MessageRow(person="alice", job_id="hers", **row))
    await messenger.deliver()
    await messenger.deliver()
    assert [body["job"] for body in receiver.bodies] == ["hers"]
    for _ in range(7):
        with Session(idle.store.engine) as session, session.begin():
            earlier = now() - timedelta(hours=1)
            session.execute(update(MessageRow).values(due=earlier, created=earlier))
        await messenger.deliver()
    assert stored(idle) == []
