"""Invalid input at the gateway: the right status, one clear sentence, no side effects."""

from __future__ import annotations

import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
import schemathesis.checks
from described import description
from host import Stack, wait_for
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi import checks
from websockets.sync.client import connect

from mlplatform.client.jobs import ENDED, Jobs

MIB = 1 << 20
NEVER = {"never": 1}
DESCRIPTION = description()


@pytest.fixture
def gateway(stack: Stack) -> Iterator[httpx.Client]:
    with stack.ray as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def no_generated_team_is_left(running: Stack) -> Iterator[None]:
    """Remove the generated teams: a cluster that is promised many times gives each a bit."""
    with running.ray as client:
        before = names_of_teams(client)
        yield
        for name in names_of_teams(client) - before:
            client.delete(f"/platform/teams/{name}", params={"force": "1"}).raise_for_status()


def names_of_teams(client: httpx.Client) -> set[str]:
    return {team["name"] for team in client.get("/platform/teams").raise_for_status().json()["teams"]}


@pytest.fixture
def waiting(gateway: httpx.Client) -> Iterator[str]:
    """A job that waits for a node because none can run it."""
    job_id = f"waiting-{secrets.token_hex(4)}"
    body = {"entrypoint": "true", "submission_id": job_id, "entrypoint_resources": NEVER}
    gateway.post("/api/jobs/", json={**body, "metadata": {"wait_for_capacity": "true"}}).raise_for_status()
    yield job_id
    remove(gateway, job_id)


def remove(gateway: httpx.Client, *job_ids: str) -> None:
    # All of them before the first deletion: a waiting job ends only in the gateway's next pass.
    for job_id in job_ids:
        gateway.post(f"/api/jobs/{job_id}/stop")
    for job_id in job_ids:
        path = f"/api/jobs/{job_id}"
        wait_for(lambda path=path: gateway.delete(path).status_code in (200, 404), f"the deletion of {job_id}", 30)


def token_for(stack: Stack, path: str) -> dict[str, str]:
    """The header with the token that a path needs: log shippers have one of their own."""
    shipper = path.startswith("/platform/logs")
    return {"Authorization": f"Bearer {stack.secret('log_shipper_token' if shipper else 'ray_token')}"}


def sentence(answer: httpx.Response, status: int, *says: str) -> None:
    """Assert that a response is an error of one line."""
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["Content-Type"].startswith("text/plain")
    text = answer.text.strip()
    assert len(text.splitlines()) == 1, text
    assert len(text) < 600, text
    assert "Traceback" not in text
    assert all(one in text for one in says), text


def test_invalid_job_ids_are_rejected_everywhere(gateway: httpx.Client, waiting: str) -> None:
    body = {"entrypoint": "true", "submission_id": "../x", "entrypoint_resources": NEVER}
    sentence(gateway.post("/api/jobs/", json=body), 400)
    body = {"entrypoint": "true", "submission_id": waiting}
    sentence(gateway.post("/api/jobs/", json=body), 409, waiting, "already exists")
    like_waiting = (f"{waiting}--1-abcdef", f"{waiting}%2fx", f"..%252f{waiting}")
    for job_id in ("unknown", *like_waiting, "'%20or%20''='", "x" * 3000):
        for method, path in (
            ("GET", "/api/jobs/{}"),
            ("DELETE", "/api/jobs/{}"),
            ("POST", "/api/jobs/{}/stop"),
            ("GET", "/api/jobs/{}/logs"),
            ("GET", "/platform/jobs/{}"),
            ("GET", "/platform/jobs/{}/log"),
        ):
            answer = gateway.request(method, path.format(job_id))
            expected = 400 if job_id.startswith("..") else 404
            assert answer.status_code == expected, (method, job_id, answer.text[:200])
    assert gateway.get(f"/api/jobs/{waiting}").json()["status"] == "PENDING"
    sentence(gateway.delete(f"/api/jobs/{waiting}"), 409, "stop it first")


def test_invalid_line_counts_are_handled(gateway: httpx.Client, waiting: str) -> None:
    for query in ("-1", "x", "1.5"):
        sentence(gateway.get(f"/platform/jobs/{waiting}/log", params={"skip_lines": query}), 400, "skip_lines")
    for query in ("9" * 5000, "\u0663"):
        for path in (f"/platform/jobs/{waiting}/log?skip_lines", f"/api/v0/logs/file?submission_id={waiting}&lines"):
            assert gateway.get(f"{path}={query}").status_code in (200, 400), path


def test_oversized_submission_is_rejected(gateway: httpx.Client) -> None:
    body = json.dumps({"entrypoint": "true", "entrypoint_resources": NEVER, "metadata": {"a": "b" * 11 * MIB}})
    sentence(gateway.post("/api/jobs/", content=body), 413, "upload files as a package")


def test_slow_clients_do_not_delay_others(stack: Stack, gateway: httpx.Client) -> None:
    """40 clients send a byte per second while another client makes ten requests."""
    targets = ["POST /api/jobs/", f"PUT /api/packages/gcs/_ray_pkg_{secrets.token_hex(8)}.zip"]
    stop = threading.Event()

    def trickle(client: socket.socket) -> None:
        while not stop.wait(1):
            client.sendall(b" ")

    with ExitStack() as all_clients, ThreadPoolExecutor(40) as pool:
        all_clients.callback(stop.set)
        for number in range(40):
            client = all_clients.enter_context(socket.create_connection(("127.0.0.1", stack.settings.ray_port), 10))
            head = f"{targets[number % 2]} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
            client.sendall(f"{head}Authorization: Bearer {stack.secret('ray_token')}\r\n\r\n".encode())
            pool.submit(trickle, client)
        seconds = []
        for _ in range(10):
            begun = time.monotonic()
            assert gateway.get("/api/jobs/").status_code == httpx.codes.OK
            seconds.append(time.monotonic() - begun)
            time.sleep(0.2)
        print(f"beside 40 slow clients: {max(seconds):.2f} s at most")
        assert max(seconds) < 5
        stop.set()


def test_unread_log_tail_uses_bounded_memory(stack: Stack, jobs: Jobs, tmp_path: Path) -> None:
    """Ten clients open the tail of a job that prints 15 MiB and never read; buffering all of it would take 150 MiB."""

    def memory() -> int:
        """Anonymous memory of the gateway's processes, in bytes."""
        printed = stack.execute("gateway", "sh", "-c", "cat /proc/[0-9]*/status", check=False).stdout
        return 1024 * sum(map(int, re.findall(r"RssAnon:\s+(\d+) kB", printed)))

    before, most = memory(), 0
    line = "import time\nfor n in range(61440): print(f'{n:0255d}', flush=True); n % 4096 or time.sleep(0.5)"
    job_id = jobs.submit(["python", "-c", line], tmp_path, name="chatty")
    wait_for(lambda: jobs.logs(job_id), "the job's first lines", 120)
    address = f"ws://127.0.0.1:{stack.settings.ray_port}/api/jobs/{job_id}/logs/tail"
    headers = {"Authorization": f"Bearer {stack.secret('ray_token')}"}
    with ExitStack() as all_clients:
        for _ in range(10):
            silent = socket.create_connection(("127.0.0.1", stack.settings.ray_port), 10)
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            # The client reads at most one message ahead.
            all_clients.enter_context(
                connect(address, sock=silent, additional_headers=headers, proxy=None, max_queue=1, close_timeout=1)
            )
            all_clients.callback(silent.shutdown, socket.SHUT_RDWR)
        ended = 0.0
        while not ended or time.monotonic() < ended + 3:
            most = max(most, memory())
            if not ended and jobs.get(job_id).status in ENDED:
                ended = time.monotonic()
        with connect(address, additional_headers=headers, proxy=None) as reader:
            received = sum(len(part) for part in reader)
    print(f"before {before / MIB:.0f} MiB, with ten silent readers {most / MIB:.0f} MiB")
    assert received > 15 * MIB
    assert most - before < 80 * MIB
    remove(stack.ray, job_id)


def test_job_cannot_impersonate_another_job(stack: Stack, gateway: httpx.Client, waiting: str) -> None:
    job_id = f"liar-{secrets.token_hex(4)}"
    claimed = {"MLPLATFORM_JOB_ID": waiting, "MLPLATFORM_ATTEMPT": "7"}
    entrypoint = "echo I am $MLPLATFORM_JOB_ID, attempt $MLPLATFORM_ATTEMPT"
    body = {"entrypoint": entrypoint, "submission_id": job_id, "runtime_env": {"env_vars": claimed}}
    gateway.post("/api/jobs/", json=body).raise_for_status()
    wait_for(lambda: gateway.get(f"/api/jobs/{job_id}").json()["status"] == "SUCCEEDED", "the end of the job", 120)
    log = wait_for(lambda: gateway.get(f"/api/jobs/{job_id}/logs").json()["logs"], "the job's log", 30)
    assert f"I am {job_id}, attempt 1\n" in log
    assert gateway.get(f"/api/jobs/{waiting}/logs").json()["logs"] == ""
    remove(gateway, job_id)


# --- Generated requests ---


def operations() -> dict[str, schemathesis.APIOperation]:
    """Operations of the API description, without its security: every generated request has the token."""
    described = deepcopy(DESCRIPTION)
    del described["security"], described["components"]["securitySchemes"]
    for path in described["paths"].values():
        for operation in path.values():
            operation.pop("security", None)
    schema = schemathesis.openapi.from_dict(described)
    return {found.ok().label: found.ok() for found in schema.get_all_operations()}


OPERATIONS = operations()
CHECKS = [
    schemathesis.checks.not_a_server_error,
    *(checks.status_code_conformance, checks.content_type_conformance),
    *(checks.response_headers_conformance, checks.response_schema_conformance),
]
MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)


def harmless(body: Any) -> Any:
    """Make a generated submission wait indefinitely instead of running; invalid fields stay invalid."""
    if not isinstance(body, dict):
        return body
    changed = dict(body)
    for field, more in (("entrypoint_resources", NEVER), ("metadata", {"wait_for_capacity": "true"})):
        if body.get(field) is None:
            changed[field] = more
        elif isinstance(body[field], dict):
            changed[field] = {**body[field], **more}
    return changed


def test_gateway_serves_its_openapi_description(gateway: httpx.Client) -> None:
    assert gateway.get("/platform/openapi.yaml").json() == DESCRIPTION


@pytest.mark.parametrize("label", OPERATIONS)
def test_generated_requests_conform_to_openapi_description(
    stack: Stack, gateway: httpx.Client, waiting: str, label: str
) -> None:
    operation = OPERATIONS[label]
    kept: list[str] = []
    token = token_for(stack, operation.path)

    @settings(
        max_examples=60 if label == "POST /api/jobs/" else 20,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=st.sampled_from(MODES).flatmap(lambda mode: operation.as_strategy(generation_mode=mode)),
        known=st.booleans(),
    )
    def answered(case: schemathesis.Case, known: bool) -> None:
        if known and "job_id" in (case.path_parameters or {}):
            case.path_parameters["job_id"] = waiting
            case.query.pop("follow", None)  # a followed log of a waiting job does not end
        if label == "GET /api/v0/logs/file":
            case.query = {**case.query, "filename": f"job-driver-{waiting}.log", "submission_id": waiting}
        if label == "PUT /api/packages/{protocol}/{package_name}":
            case.body = b""  # an empty package is rejected instead of stored
        if label == "POST /api/jobs/":
            case.body = harmless(case.body)
        answer = case.call(base_url=str(gateway.base_url), headers=token, timeout=20)
        if label == "POST /api/jobs/" and answer.status_code == 200:
            kept.append(answer.json()["submission_id"])
        case.validate_response(answer, checks=CHECKS)

    try:
        answered()
    finally:
        remove(gateway, *kept)
