"""The generated description: it has every route with its errors, and answers have the fields that it names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from started_gateway import StartedGateway

from mlplatform.api.jobs import Attempt, Job, JobWithAttempts


@pytest.fixture
def client(started: StartedGateway) -> Iterator[httpx.Client]:
    with started.running() as client:
        yield client


@pytest.fixture
def described(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/platform/openapi.json").json()
    return found


def test_operation_has_its_models_and_errors(described: dict[str, Any]) -> None:
    added = described["paths"]["/platform/teams"]["post"]
    assert added["summary"] == "Add a team; only for administrators."
    assert added["requestBody"] == {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/NewTeam"}}},
    }
    assert added["responses"]["200"]["content"] == {
        "application/json": {"schema": {"$ref": "#/components/schemas/Team"}}
    }
    assert added["responses"].keys() == {"200", *map(str, (400, 401, 403, 405, 408, 409, 413, 503))}
    assert {str(answer["content"]) for status, answer in added["responses"].items() if status != "200"} == {
        "{'text/plain': {}}"
    }
    schema = described["components"]["schemas"]["NewTeam"]
    assert (schema["required"], schema["additionalProperties"]) == (["name"], False)


def test_parameters_are_those_of_the_query(described: dict[str, Any]) -> None:
    audit = described["paths"]["/platform/audit"]["get"]
    assert [parameter["name"] for parameter in audit["parameters"]] == ["limit", "since", "before"]
    assert {parameter["schema"]["type"] for parameter in audit["parameters"]} == {"string"}
    assert "422" not in audit["responses"]


def test_credentials_are_those_that_a_route_needs(described: dict[str, Any]) -> None:
    health = described["paths"]["/platform/health"]["get"]
    assert (health["security"], health["responses"].keys()) == ([], {"200", "503"})
    assert described["security"] == [{"token": []}]
    assert "security" not in described["paths"]["/api/jobs/"]["get"]


def test_pages_and_proxied_paths_are_left_out(described: dict[str, Any]) -> None:
    assert {path.split("/")[1] for path in described["paths"]} == {"api", "platform"}
    assert not described["paths"].keys() & {"/platform/", "/platform/login", "/platform/wheel/", "/api/authenticate"}


def test_jobs_have_the_fields_of_their_model(client: httpx.Client) -> None:
    job, listed = client.get("/api/jobs/mine").json(), client.get("/api/jobs/").json()
    assert job.keys() == listed[0].keys() == Job.model_fields.keys()
    whole = client.get("/platform/jobs/mine").json()
    assert whole.keys() == JobWithAttempts.model_fields.keys()
    assert whole["attempts"][0].keys() == Attempt.model_fields.keys()


def test_head_is_part_of_get(client: httpx.Client) -> None:
    for path in ("/platform/health", "/api/jobs/mine", "/platform/teams"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path
        assert int(answer.headers["content-length"]) > 0
