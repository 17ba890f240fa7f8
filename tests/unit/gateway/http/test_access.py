"""Every route of the gateway, and who may use it: each combination is sent to the whole gateway."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Depends
from peopled import as_person, invite, log_in, populate, submit
from ray_head import BOUND_S, CLUSTER_TOKEN, TOKEN, talking
from starlette.routing import BaseRoute, Mount, Route
from starlette.websockets import WebSocket
from started_gateway import MLFLOW_PASSWORD, PROMETHEUS_PASSWORD, SHIPPER_TOKEN, StartedGateway
from websockets.exceptions import InvalidStatus

from mlplatform.contract import MLFLOW_CHANGES, MODEL_DIGESTS
from mlplatform_gateway.app import create_app
from mlplatform_gateway.http import access
from mlplatform_gateway.http.application import application

PEOPLE = {"owner", "team-mate", "lead", "other", "administrator", "shared token"}
JOBS = {"attempt of alice", "attempt of bob"}
USERS = PEOPLE | JOBS
OPEN = USERS | {"log shipper", "MLflow", "revoked", "nobody"}
"""Everybody but whoever sends the cluster's token, which gets 401 on every path."""

TEAM = PEOPLE - {"other"}
READ = TEAM | {"attempt of alice"}
CONTROL = TEAM - {"team-mate"}
STOP = CONTROL | {"attempt of alice"}
ADMINISTRATORS = {"administrator", "shared token"}
LOG_SHIPPER, MLFLOW = {"log shipper"}, {"MLflow"}


@dataclass
class Asked:
    """A request for a route, and who may make it."""

    path: str
    allowed: set[str]
    options: dict[str, Any] = field(default_factory=dict)


TABLE: dict[tuple[str, str], Asked] = {
    ("GET", "/platform/health"): Asked("/platform/health", OPEN),
    ("GET", "/platform/openapi.yaml"): Asked("/platform/openapi.yaml", USERS),
    ("GET", "/platform/jobs/{job_id}"): Asked("/platform/jobs/hers", USERS),
    ("GET", "/platform/jobs/{job_id}/log"): Asked("/platform/jobs/hers/log", READ),
    ("POST", "/platform/jobs/{job_id}/resume"): Asked("/platform/jobs/hers/resume", CONTROL),
    ("POST", "/platform/jobs/{job_id}/again"): Asked("/platform/jobs/hers/again", {"owner"}),
    ("GET", "/api/jobs/"): Asked("/api/jobs/", USERS),
    ("POST", "/api/jobs/"): Asked("/api/jobs/", USERS, {"json": {"entrypoint": "true"}}),
    ("GET", "/api/jobs/{job_id}"): Asked("/api/jobs/hers", USERS),
    ("DELETE", "/api/jobs/{job_id}"): Asked("/api/jobs/hers", CONTROL),
    ("POST", "/api/jobs/{job_id}/stop"): Asked("/api/jobs/hers/stop", STOP),
    ("GET", "/api/jobs/{job_id}/logs"): Asked("/api/jobs/hers/logs", READ),
    ("WEBSOCKET", "/api/jobs/{job_id}/logs/tail"): Asked("/api/jobs/hers/logs/tail", READ),
    ("POST", "/platform/jobs/{job_id}/lab"): Asked("/platform/jobs/hers/lab", {"owner"}),
    ("WEBSOCKET", "/platform/jobs/{job_id}/ssh"): Asked("/platform/jobs/hers/ssh?key=none", {"owner"}),
    ("GET", "/api/v0/logs/file"): Asked("/api/v0/logs/file?submission_id=hers", READ),
    ("GET", "/api/v0/logs/stream"): Asked("/api/v0/logs/stream?submission_id=hers", READ),
    ("GET", "/api/packages/{protocol}/{package_name:path}"): Asked("/api/packages/gcs/a.zip", USERS),
    ("PUT", "/api/packages/{protocol}/{package_name:path}"): Asked("/api/packages/gcs/a.zip", USERS),
    ("GET", "/api/version"): Asked("/api/version", USERS),
    ("POST", "/platform/capacity"): Asked("/platform/capacity", USERS, {"json": {}}),
    ("GET", "/platform/utilisation"): Asked("/platform/utilisation", USERS),
    ("GET", "/platform/storage-credentials"): Asked("/platform/storage-credentials", PEOPLE),
    ("POST", "/platform/storage-credentials"): Asked("/platform/storage-credentials", PEOPLE),
    ("GET", "/platform/queue"): Asked("/platform/queue", USERS),
    ("GET", "/platform/usage"): Asked("/platform/usage", USERS),
    ("GET", "/platform/prune"): Asked("/platform/prune", ADMINISTRATORS),
    ("POST", "/platform/prune"): Asked("/platform/prune", ADMINISTRATORS),
    ("GET", "/platform/audit"): Asked("/platform/audit", ADMINISTRATORS),
    ("GET", "/platform/logs"): Asked("/platform/logs", LOG_SHIPPER),
    ("PUT", "/platform/logs/{node}/{file}"): Asked("/platform/logs/node/file", LOG_SHIPPER),
    ("POST", "/platform/logs/{node}"): Asked("/platform/logs/node", LOG_SHIPPER),
    ("POST", MLFLOW_CHANGES): Asked(MLFLOW_CHANGES, MLFLOW, {"json": {}}),
    ("GET", MODEL_DIGESTS): Asked(f"{MODEL_DIGESTS}?source=x&created=1", USERS),
    ("GET", "/platform/people"): Asked("/platform/people", PEOPLE),
    ("POST", "/platform/people"): Asked("/platform/people", ADMINISTRATORS, {"json": {"name": "bob"}}),
    ("DELETE", "/platform/people/{name}"): Asked("/platform/people/missing", ADMINISTRATORS),
    ("GET", "/platform/teams"): Asked("/platform/teams", PEOPLE),
    ("POST", "/platform/teams"): Asked("/platform/teams", ADMINISTRATORS, {"json": {"name": "vision"}}),
    ("PATCH", "/platform/teams/{name}"): Asked("/platform/teams/vision", ADMINISTRATORS, {"json": {}}),
    ("DELETE", "/platform/teams/{name}"): Asked("/platform/teams/missing", ADMINISTRATORS),
    ("POST", "/platform/tokens"): Asked("/platform/tokens", OPEN, {"json": {}}),
    ("GET", "/platform/tokens"): Asked("/platform/tokens", PEOPLE),
    ("DELETE", "/platform/tokens/{token_id}"): Asked("/platform/tokens/missing", PEOPLE),
    ("GET", "/platform/webhook"): Asked("/platform/webhook", PEOPLE),
    ("PUT", "/platform/webhook"): Asked("/platform/webhook", PEOPLE, {"json": {"url": None}}),
    ("GET", "/platform/secrets"): Asked("/platform/secrets", PEOPLE),
    ("PUT", "/platform/secrets/{name}"): Asked("/platform/secrets/KEY", PEOPLE, {"content": b"x"}),
    ("DELETE", "/platform/secrets/{name}"): Asked("/platform/secrets/missing", PEOPLE),
    ("GET", "/platform/attempt/secrets"): Asked("/platform/attempt/secrets", JOBS),
    ("PUT", "/platform/attempt/runs/{run_id}"): Asked("/platform/attempt/runs/not.valid", JOBS),
    # It opens a session for whoever has a token.
    ("POST", "/api/authenticate"): Asked("/api/authenticate", PEOPLE),
    ("POST", "/platform/logout"): Asked("/platform/logout", OPEN),
    ("GET", "/platform/login"): Asked("/platform/login", OPEN),
    ("POST", "/platform/login"): Asked("/platform/login", OPEN, {"data": {"token": TOKEN}}),
    ("GET", "/platform/"): Asked("/platform/", USERS),
    ("GET", "/platform/overview"): Asked("/platform/overview", USERS),
    ("GET", "/platform/jobs/{job_id}/results"): Asked("/platform/jobs/hers/results", READ),
    ("MOUNT", "/platform/static"): Asked("/platform/static/style.css", OPEN),
    ("GET", "/platform/wheel/"): Asked("/platform/wheel/", OPEN),
    ("GET", "/platform/wheel/{file}"): Asked("/platform/wheel/missing.whl", OPEN),
    ("GET", "/platform/metrics"): Asked(
        "/platform/metrics", OPEN, {"headers": {"Authorization": f"Bearer {PROMETHEUS_PASSWORD}"}}
    ),
    ("GET", "/platform/prometheus/api/v1/query"): Asked("/platform/prometheus/api/v1/query?query=vector(1)", OPEN),
    ("GET", "/platform/grafana/api/health"): Asked("/platform/grafana/api/health", OPEN),
    # Everything else is Ray's; `test_ray_paths_of_people` has more of it.
    ("MOUNT", ""): Asked("/api/v0/tasks", ADMINISTRATORS),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> StartedGateway:
    """The whole gateway without a Ray head."""
    folder = tmp_path_factory.mktemp("gateway")
    return StartedGateway(folder, "http://127.0.0.1:9", shipper_token=True, mlflow="http://127.0.0.1:9")


@pytest.fixture(scope="module")
def gateway(files: StartedGateway) -> Iterator[httpx.Client]:
    with files.running() as client:
        yield client


@pytest.fixture(scope="module")
def clients(files: StartedGateway, gateway: httpx.Client) -> Iterator[dict[str, httpx.Client]]:
    """A client per relation to job `hers`, which is of alice and team vision."""
    tokens = populate(gateway)
    revoked = log_in(gateway, invite(gateway, "alice"))
    assert gateway.delete(f"/platform/tokens/{revoked.split('_')[1]}").status_code == 200
    whose = {"owner": "alice", "team-mate": "bob", "lead": "lena", "other": "otto", "administrator": "ada"}
    found = {relation: as_person(gateway, tokens[name]) for relation, name in whose.items()}
    found |= {
        "shared token": gateway,
        "log shipper": as_person(gateway, SHIPPER_TOKEN),
        "MLflow": as_person(gateway, MLFLOW_PASSWORD),
        "revoked": as_person(gateway, revoked),
        "attempt of alice": as_person(gateway, attempt_token(files, found["owner"], "alice")),
        "attempt of bob": as_person(gateway, attempt_token(files, found["team-mate"], "bob")),
        "cluster's token": as_person(gateway, CLUSTER_TOKEN),
        "nobody": as_person(gateway, ""),
    }
    assert submit(found["owner"], "hers").status_code == 200
    yield found
    for client in found.values():
        client.close()


def attempt_token(files: StartedGateway, owner: httpx.Client, name: str) -> str:
    """The token of an attempt, which runs, of a job of a person."""
    assert submit(owner, f"of-{name}").status_code == 200
    return files.attempt(name, f"of-{name}")


def address(client: httpx.Client) -> str:
    return str(client.base_url).rstrip("/")


def status(client: httpx.Client, method: str, asked: Asked) -> int:
    """The status of a request; of a WebSocket that is accepted, 101."""
    if method == "WEBSOCKET":
        headers = {"Authorization": client.headers["authorization"]} if "authorization" in client.headers else {}
        try:
            with talking(address(client), asked.path, additional_headers=headers):
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code
    if asked.path == "/platform/logout":
        client.cookies.clear()
    with client.stream("GET" if method == "MOUNT" else method, asked.path, timeout=BOUND_S, **asked.options) as answer:
        client.cookies.clear()
        return answer.status_code


@pytest.mark.parametrize(("method", "route"), TABLE)
def test_route_is_used_by_whom_the_table_names(clients: dict[str, httpx.Client], method: str, route: str) -> None:
    asked = TABLE[method, route]
    statuses = {relation: status(client, method, asked) for relation, client in clients.items()}
    if "headers" in asked.options:
        del statuses["cluster's token"]  # the request has another one
    else:
        assert statuses["cluster's token"] == 401
    assert {relation for relation, code in statuses.items() if code not in (401, 403)} == asked.allowed, statuses


def test_table_has_every_route_of_the_gateway(started: StartedGateway) -> None:
    started.shipper_token = True
    routes: list[Any] = create_app(started.settings()).routes
    assert {(method, route.path) for route in routes for method in methods_of(route)} == TABLE.keys()


def methods_of(route: BaseRoute) -> set[str]:
    """The methods of a route; HEAD is part of GET."""
    if isinstance(route, Route):
        return (route.methods or set()) - {"HEAD"}
    return {"MOUNT"} if isinstance(route, Mount) else {"WEBSOCKET"}


async def endpoint() -> None:
    """Never called."""


async def talk(socket: WebSocket) -> None:
    """Never called."""


def test_route_without_a_right_is_refused_at_start() -> None:
    router, sockets = APIRouter(), APIRouter()
    router.get("/platform/new")(endpoint)
    sockets.websocket("/platform/talk")(talk)
    for routes, path in ((router.routes, "/platform/new"), (sockets.routes, "/platform/talk")):
        with pytest.raises(LookupError, match=f"{path} declares no right"):
            application(routes)


def test_right_precedes_other_dependencies() -> None:
    router = APIRouter(dependencies=[Depends(endpoint), access.USERS])
    router.get("/platform/new")(endpoint)
    with pytest.raises(LookupError, match="/platform/new declares no right: begin with"):
        application(router.routes)


@pytest.mark.parametrize("kind", [Route, Mount])
def test_route_of_another_kind_is_refused_at_start(kind: Callable[[str, object], BaseRoute]) -> None:
    with pytest.raises(LookupError, match="/platform/new is not a route of FastAPI"):
        application([kind("/platform/new", endpoint)])


@pytest.mark.parametrize("path", ["/nodes?view=summary", "/api/cluster_status", "/api/v0/nodes", "/", "/timezone"])
def test_ray_paths_of_people(clients: dict[str, httpx.Client], path: str) -> None:
    assert {clients[name].get(path).status_code for name in ("owner", "other", "administrator")} == {503}


@pytest.mark.parametrize(
    "path", ["/api/v0/actors", "/api/v0/logs?node_id=1", "/nodes/a1", "/logical/actors", "/events", "/api/jobs/a/b"]
)
def test_other_ray_paths_are_for_administrators(clients: dict[str, httpx.Client], path: str) -> None:
    answer = clients["owner"].get(path)
    assert (answer.status_code, answer.text[:31]) == (403, "Only administrators may use GET")
    assert clients["administrator"].get(path).status_code == 503


def test_log_shipper_reaches_nothing_of_ray(clients: dict[str, httpx.Client]) -> None:
    for path in ("/nodes?view=summary", "/api/v0/tasks"):
        assert clients["log shipper"].get(path).status_code == 403


def test_jobs_that_only_ray_knows_do_not_exist_for_people(clients: dict[str, httpx.Client]) -> None:
    for method, path in (("GET", ""), ("GET", "/logs"), ("POST", "/stop"), ("DELETE", "")):
        answer = clients["owner"].request(method, f"/api/jobs/01000000{path}")
        assert (answer.status_code, answer.text) == (404, "Job 01000000 does not exist")
    assert status(clients["owner"], "WEBSOCKET", Asked("/api/jobs/01000000/logs/tail", set())) == 404


def test_refusal_names_who_may(clients: dict[str, httpx.Client]) -> None:
    assert clients["team-mate"].post("/api/jobs/hers/stop").text == (
        "Job hers belongs to alice of team vision, so bob cannot stop it; only alice, the leads of team vision and "
        "administrators can."
    )
    assert clients["other"].get("/api/jobs/hers/logs").text == (
        "Job hers belongs to alice of team vision, so otto cannot read its log; only alice, members of team vision and "
        "administrators can."
    )


@pytest.mark.parametrize(("name", "code"), [("log shipper", 403), ("attempt of alice", 403), ("cluster's token", 401)])
def test_only_people_open_sessions(clients: dict[str, httpx.Client], name: str, code: int) -> None:
    token = clients[name].headers["authorization"].removeprefix("Bearer ")
    with as_person(clients[name], "") as browser:
        assert browser.post("/platform/login", data={"token": token}).status_code == code
        assert browser.post("/api/authenticate", headers={"Authorization": f"Bearer {token}"}).status_code == code
        assert not browser.cookies


@pytest.mark.parametrize("path", ["/", "/api/healthz", "/platform/health", "/nodes", "/static/main.js", "/none"])
@pytest.mark.parametrize("name", ["Authorization", "X-Ray-Authorization"])
def test_clusters_token_is_refused_on_every_path(clients: dict[str, httpx.Client], path: str, name: str) -> None:
    given = {name: f"Bearer {CLUSTER_TOKEN}"}
    for method in ("GET", "POST", "DELETE", "OPTIONS"):
        assert clients["nobody"].request(method, path, headers=given).status_code == 401
    with pytest.raises(InvalidStatus) as refused, talking(address(clients["nobody"]), path, additional_headers=given):
        pass
    assert refused.value.response.status_code == 401
