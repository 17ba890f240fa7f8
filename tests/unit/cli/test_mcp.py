"""`mlplatform mcp`, as a client of the protocol starts and calls it."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import Serve
from mcp import Client, StdioServerParameters, stdio_client
from peopled import as_person, invite, log_in, populate, submit
from started_gateway import StartedGateway

READING = {"status", "why", "logs", "metrics", "queue", "usage"}


@pytest.fixture
def started(tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch) -> StartedGateway:
    """A gateway's files, of which `ray_token` has the shared token, with the job `mine`, which runs."""
    monkeypatch.setenv("MLPLATFORM_STORAGE", str(tmp_path / "storage"))
    started = StartedGateway(tmp_path, f"http://127.0.0.1:{closed_port}")
    started.add()
    return started


@pytest.fixture
def gateway(started: StartedGateway) -> Iterator[httpx.Client]:
    with started.running() as client:
        yield client


@asynccontextmanager
async def connected(address: object, token: Path | None = None) -> AsyncIterator[Client]:
    """A client of a server that uses the gateway at an address."""
    env = {**os.environ, "RAY_ADDRESS": str(address)} | ({"RAY_AUTH_TOKEN_PATH": str(token)} if token else {})
    server = StdioServerParameters(command=sys.executable, args=["-m", "mlplatform", "mcp"], env=env)
    async with Client(stdio_client(server)) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """The text of a tool error."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.content
    return str(result.content[0].text)


async def test_tools_state_whether_they_only_read(closed_port: int) -> None:
    async with connected(f"http://127.0.0.1:{closed_port}") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert "does not answer" in await refusal(client, "queue")
    assert tools.keys() == {"submit", *READING}
    assert {name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint} == READING
    assert "Time limit of an attempt" in json.dumps(tools["submit"].input_schema)


async def test_submitted_job_is_seen_by_tools(gateway: httpx.Client, tmp_path: Path) -> None:
    script = tmp_path / "job" / "train.py"
    script.parent.mkdir()
    script.touch()
    options = {"limit": "1h", "class": "idle", "env": {"KEY": "value-of-key"}}
    async with connected(gateway.base_url, tmp_path / "ray_token") as client:
        job = await call(client, "submit", path=str(script), arguments=["--epochs", "2"], options=options)
        assert job["entrypoint"] == "python train.py --epochs 2"
        status = await call(client, "status", job_id=job["submission_id"])
        assert (status["limit_s"], status["metadata"]["class"]) == (3600, "idle")
        assert "value-of-key" not in json.dumps([job, status])
        assert (await call(client, "why", job_id="mine"))["entry"] is None
        assert (await call(client, "logs", job_id="mine"))["result"] == ""
        assert "entries" in await call(client, "queue")
        used = await call(client, "usage", by="job", since="1h")
        assert "mine" in [entry["job"] for entry in used["entries"]]


async def test_errors_of_the_platform_are_tool_errors(gateway: httpx.Client, tmp_path: Path) -> None:
    async with connected(gateway.base_url, tmp_path / "ray_token") as client:
        assert "There is no job 'missing'" in await refusal(client, "status", job_id="missing")
        assert "There is no file /none.py" in await refusal(client, "submit", path="/none.py")
        assert "Invalid time 'soon'" in await refusal(client, "usage", since="soon")
        assert "job_id" in await refusal(client, "metrics", job_id="../people")


async def test_tools_have_the_rights_of_the_token(gateway: httpx.Client, tmp_path: Path) -> None:
    tokens = populate(gateway)
    with as_person(gateway, tokens["alice"]) as alice:
        assert submit(alice, "hers").status_code == 200
    (tmp_path / "token").write_text(tokens["otto"])
    async with connected(gateway.base_url, tmp_path / "token") as client:
        refused = await refusal(client, "logs", job_id="hers")
    assert refused.startswith("Error executing tool logs: ")
    assert "hers" in refused


async def test_search_of_agent_ends_at_hours_of_its_token(
    started: StartedGateway, gateway: httpx.Client, tmp_path: Path
) -> None:
    populate(gateway)
    (tmp_path / "token").write_text(log_in(gateway, invite(gateway, "alice", gpu_hours=3)))
    script = tmp_path / "search" / "train.py"
    script.parent.mkdir()
    script.touch()
    trial = {"path": str(script), "options": {"gpus": 2, "wait_for_capacity": True}}

    def train(job_id: str) -> None:
        started.attempt("alice", job_id)
        started.age(job_id, hours=0.75)
        started.end(job_id=job_id)

    async with connected(gateway.base_url, tmp_path / "token") as agent:
        for rate in ("0.1", "0.01"):
            job = await call(agent, "submit", arguments=["--lr", rate], **trial)
            await asyncio.to_thread(train, job["submission_id"])
            assert (await call(agent, "status", job_id=job["submission_id"]))["status"] == "SUCCEEDED"
        refused = await refusal(agent, "submit", arguments=["--lr", "0.001"], **trial)
        assert "have used 3.0 of its 3 GPU hours, so it submits no more" in refused
        used = (await call(agent, "usage", since="1d"))["entries"]
    assert {entry["person"]: round(entry["gpu_seconds"] / 3600) for entry in used}["alice"] == 3


async def test_logs_and_metrics_are_bounded(serve: Serve) -> None:
    curve = {"steps": list(range(300)), "values": [float(step) for step in range(300)]}
    run = {"id": "r", "name": "run", "status": "RUNNING", "page": "#/r", "metrics": {"loss": curve}, "models": []}
    answers = {
        "/platform/jobs/t-1/results": {"runs": [run], "checkpoints": [], "folder": "s3://ray/t-1"},
        "/api/jobs/t-1/logs": {"logs": "".join(f"0 %\r{line}\n" for line in range(2000))},
    }
    async with connected(serve(lambda method, path: (200, json.dumps(answers[path])))) as client:
        logs = (await call(client, "logs", job_id="t-1", lines=3))["result"]
        assert "less than or equal to 1000" in await refusal(client, "logs", job_id="t-1", lines=5000)
        (found,) = (await call(client, "metrics", job_id="t-1"))["runs"]
    assert logs == "1997\n1998\n1999"
    steps = found["metrics"]["loss"]["steps"]
    assert (len(steps), steps[-1]) == (20, 299)
    assert found["metrics"]["loss"]["values"] == [float(step) for step in steps]
