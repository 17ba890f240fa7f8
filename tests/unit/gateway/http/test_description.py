"""The generated description: it has every route with its errors, and answers have the fields that it names."""

from typing import Any

import httpx
from described import description, schemas

from mlplatform.api.jobs import Job, JobClass
from mlplatform_gateway.queue.planner import queue


def operation(method: str, path: str) -> dict[str, Any]:
    return description()["paths"][path][method]


def test_gateway_serves_its_description(client: httpx.Client) -> None:
    answer = client.get("/platform/openapi.yaml")
    assert answer.headers["content-type"] == "application/yaml"
    assert answer.json() == description()


def test_operation_has_its_models_and_errors() -> None:
    added = operation("post", "/platform/teams")
    assert added["summary"] == "Add a team; only for administrators."
    schema = {"$ref": "#/components/schemas/NewTeam"}
    assert added["requestBody"] == {"required": True, "content": {"application/json": {"schema": schema}}}
    answers = added["responses"]
    assert answers["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Team"}
    assert answers.keys() == {"200", *map(str, (400, 401, 403, 405, 408, 409, 413, 503))}
    assert all(answer["content"] == {"text/plain": {}} for status, answer in answers.items() if status != "200")
    schema = schemas()["NewTeam"]
    assert (schema["required"], schema["additionalProperties"]) == (["name"], False)


def test_body_that_may_be_empty_is_not_required() -> None:
    assert not operation("post", "/platform/jobs/{job_id}/resume")["requestBody"].get("required")


def test_parameters_are_those_of_the_query() -> None:
    audit = operation("get", "/platform/audit")
    assert [parameter["name"] for parameter in audit["parameters"]] == ["limit", "since", "before"]
    assert {parameter["schema"]["type"] for parameter in audit["parameters"]} == {"string"}
    assert "422" not in audit["responses"]


def test_credentials_are_those_that_a_route_needs() -> None:
    health = operation("get", "/platform/health")
    assert (health["security"], health["responses"].keys()) == ([], {"200", "503"})
    assert description()["security"] == [{"token": []}]
    assert "security" not in operation("get", "/api/jobs/")
    assert operation("get", "/platform/metrics")["security"] == [{"metrics": []}]


def test_pages_and_proxied_paths_are_left_out() -> None:
    paths = description()["paths"].keys()
    assert {path.split("/")[1] for path in paths} == {"api", "platform"}
    assert not paths & {"/platform/", "/platform/login", "/platform/wheel/", "/api/authenticate"}


def test_jobs_have_the_fields_of_their_model(client: httpx.Client) -> None:
    job, listed = client.get("/api/jobs/mine").json(), client.get("/api/jobs/").json()
    assert job.keys() == listed[0].keys() == Job.model_fields.keys()
    whole = client.get("/platform/jobs/mine").json()
    assert whole.keys() == schemas()["JobWithAttempts"]["properties"].keys()
    assert whole["attempts"][0].keys() == schemas()["Attempt"]["properties"].keys()


def test_classes_of_jobs_are_those_of_the_planner() -> None:
    assert list(queue.JobClass) == list(JobClass.__args__)


def test_head_is_part_of_get(client: httpx.Client) -> None:
    for path in ("/platform/health", "/api/jobs/mine", "/platform/teams"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path
        assert int(answer.headers["content-length"]) > 0
