"""Requests that reach the Ray head: those that Ray's dashboard and command line make to read, and no others."""

from collections.abc import Iterator

import httpx
import pytest
from ray_head import AUTHORIZED, BOUND_S, NO_TLS, Head, talking
from started_gateway import StartedGateway
from websockets.exceptions import InvalidStatus


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, head: Head) -> Iterator[httpx.Client]:
    """The whole gateway in front of a head that answers everything."""
    with StartedGateway(tmp_path_factory.mktemp("gateway"), head.address).running() as client:
        yield client


READ = [
    *("/", "/favicon.ico", "/static/js/main.js", "/timezone", "/nodes?view=summary", "/nodes/a1", "/logical/actors"),
    *("/logical/actors/a1", "/api/cluster_status?format=1", "/api/v0/tasks?detail=1", "/api/v0/tasks/timeline"),
    *("/api/v0/actors/summarize", "/api/v0/logs?node_id=1", "/api/v0/logs/file?filename=raylet.out", "/events"),
    *("/api/serve/applications/", "/api/data/datasets/01000000", "/api/train/v2/runs/v1", "/api/prometheus/sd"),
    *("/api/jobs/01000000", "/api/jobs/01000000/logs", "/api/v0/runtime_env_redaction", "/api/v0/cluster_metadata"),
]

REFUSED = [
    *[("GET", path) for path in ("/worker/traceback?pid=1", "/worker/cpu_profile", "/task/traceback", "/echo")],
    *[("GET", path) for path in ("/memory_profile", "/api/v0/delay/5", "/api/component_activities", "/nodes/a/b")],
    *[("POST", path) for path in ("/report_events", "/api/task_events", "/api/job_agent/jobs/", "/nodes", "/")],
    *[("PUT", "/api/serve/applications/"), ("DELETE", "/api/serve/applications/"), ("PUT", "/api/jobs/x")],
    *[("DELETE", "/logical/actors/a1"), ("PATCH", "/api/v0/tasks"), ("OPTIONS", "/nodes")],
]


def test_what_dashboard_and_command_line_read_is_passed_on(gateway: httpx.Client) -> None:
    answers = {path: gateway.get(path).status_code for path in READ}
    assert set(answers.values()) == {200}, answers


def test_all_other_requests_are_refused_in_one_sentence(gateway: httpx.Client) -> None:
    for method, path in REFUSED:
        answer = gateway.request(method, path)
        assert (answer.status_code, "does not pass" in answer.text) == (403, True), f"{method} {path}: {answer.text}"


def test_jobs_that_only_ray_knows_can_be_ended(gateway: httpx.Client) -> None:
    assert gateway.post("/api/jobs/01000000/stop").json()["method"] == "POST"
    assert gateway.delete("/api/jobs/01000000").json()["method"] == "DELETE"


def test_only_websocket_of_logs_is_passed_on(gateway: httpx.Client) -> None:
    with pytest.raises(InvalidStatus) as refused:
        talking(str(gateway.base_url).rstrip("/"), "/talk", additional_headers=AUTHORIZED)
    assert refused.value.response.status_code == 403
    assert httpx.get(f"{gateway.base_url}/talk", verify=NO_TLS, timeout=BOUND_S).status_code == 401


def test_unknown_paths_of_gateway_do_not_exist(gateway: httpx.Client) -> None:
    for path in ("/platform/jobs/a%2fb", "/platform/unknown"):
        answer = gateway.get(path)
        assert (answer.status_code, "The gateway has no" in answer.text) == (404, True), answer.text
