"""A stand-in for the Ray head with a gateway in front of it, and a client of a whole gateway."""

from collections.abc import Iterator

import httpx
import pytest
from peopled import as_person, populate
from ray_head import AUTHORIZED, BOUND_S, NO_TLS, Head, gateway_to, served
from started_gateway import StartedGateway


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    started = Head()
    yield started
    started.kill()


@pytest.fixture(scope="module")
def gateway(head: Head) -> Iterator[str]:
    with served(gateway_to(head.address)) as address:
        yield address


@pytest.fixture
def proxied(gateway: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway, headers=AUTHORIZED, timeout=BOUND_S, verify=NO_TLS) as opened:
        yield opened


@pytest.fixture
def client(started: StartedGateway) -> Iterator[httpx.Client]:
    with started.running() as client:
        yield client


@pytest.fixture
def people(client: httpx.Client) -> Iterator[dict[str, httpx.Client]]:
    """A client per person."""
    clients = {name: as_person(client, token) for name, token in populate(client).items()}
    yield clients
    for opened in clients.values():
        opened.close()
