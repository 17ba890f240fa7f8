"""A stand-in for the Ray head and a gateway in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from ray_head import AUTHORIZED, BOUND_S, NO_TLS, Head, gateway_to, served


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
def client(gateway: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway, headers=AUTHORIZED, timeout=BOUND_S, verify=NO_TLS) as opened:
        yield opened
