"""Submissions and job details, compared with the models of the installed Ray."""

import dataclasses
import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from ray.dashboard.modules.job.common import JobSubmitRequest
from ray.dashboard.modules.job.pydantic_models import JobDetails
from ray.dashboard.runtime_env_redaction import redact_runtime_env

from mlplatform.capacity.resources import Resources, WorkerGroup
from mlplatform.contract import ATTEMPT_ID
from mlplatform.errors import JobError
from mlplatform_gateway.jobs.details import job_details, redacted
from mlplatform_gateway.jobs.schema import AttemptRow
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.submission import Submission, group_of, resources_of

RESTARTS = ("max_restarts_on_loss", "max_restarts_on_failure")

WHOLE: dict[str, Any] = {
    "entrypoint": "python train.py",
    "submission_id": "mine",
    "job_id": "mine",
    "runtime_env": {"env_vars": {"A": "1"}, "working_dir": "gcs://_ray_pkg_0.zip"},
    "metadata": {"user": "ann", "note": "größe"},
    "entrypoint_num_cpus": 0.5,
    "entrypoint_num_gpus": 1,
    "entrypoint_memory": 1 << 30,
    "entrypoint_resources": {"special": 0.25},
    "entrypoint_label_selector": {"role": "worker"},
}


def parsed(**fields: Any) -> Submission:
    return Submission.parse(json.dumps({"entrypoint": "true", **fields}).encode())


def refusal(body: bytes) -> str:
    with pytest.raises(JobError) as error:
        Submission.parse(body)
    return str(error.value)


def refused(**fields: Any) -> str:
    return refusal(json.dumps({"entrypoint": "true", **fields}).encode())


# --- Ray's request ---


def test_submission_fields_equal_rays() -> None:
    theirs = {field.name for field in dataclasses.fields(JobSubmitRequest)}
    assert set(Submission.model_fields) == theirs == set(WHOLE)


@pytest.mark.parametrize("field", dataclasses.fields(JobSubmitRequest), ids=lambda field: str(field.name))
def test_every_field_of_rays_request_is_parsed(field: Any) -> None:
    body = {"entrypoint": WHOLE["entrypoint"], field.name: WHOLE[field.name]}
    request = dataclasses.asdict(JobSubmitRequest(**body))
    assert getattr(Submission.parse(json.dumps(request).encode()), field.name) == WHOLE[field.name]


def test_unknown_field_with_null_value_is_ignored() -> None:
    assert parsed(entrypoint_new=None, runtime_env=None, metadata=None).runtime_env == {}


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"entrypoint": ""}, "entrypoint='' is not valid"),
        ({"entrypoint": 5}, "entrypoint=5 is not valid"),
        ({"entrypoint": None}, "entrypoint is not valid: Field required"),
        ({"submission_id": 5}, "submission_id=5 is not valid"),
        ({"job_id": ""}, "job_id='' is not valid"),
        ({"runtime_env": "x"}, "runtime_env='x' is not valid"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, "runtime_env.env_vars must map strings to strings"),
        ({"runtime_env": {"env_vars": ["A"]}}, "runtime_env.env_vars must map strings to strings"),
        ({"runtime_env": {"working_dir": "gcs://bucket/code.zip"}}, "runtime_env names an invalid package"),
        ({"runtime_env": {"py_modules": ["gcs://["]}}, "runtime_env names an invalid package"),
        ({"runtime_env": {"a": [float("nan")]}}, "runtime_env contains NaN or Infinity"),
        ({"runtime_env": {"a": {"b": float("inf")}}}, "runtime_env contains NaN or Infinity"),
        ({"metadata": ["x"]}, "metadata=['x'] is not valid"),
        ({"metadata": {"a": 1}}, "metadata.a=1 is not valid"),
        ({"metadata": {"a": None}}, "metadata.a=None is not valid"),
        ({"entrypoint_num_cpus": -1}, "entrypoint_num_cpus=-1 is not valid"),
        ({"entrypoint_num_cpus": "1"}, "entrypoint_num_cpus='1' is not valid"),
        ({"entrypoint_num_cpus": True}, "entrypoint_num_cpus=True is not valid"),
        ({"entrypoint_num_gpus": float("nan")}, "entrypoint_num_gpus=nan is not valid"),
        ({"entrypoint_num_gpus": float("inf")}, "entrypoint_num_gpus=inf is not valid"),
        ({"entrypoint_memory": 1.5}, "entrypoint_memory=1.5 is not valid"),
        ({"entrypoint_memory": -1}, "entrypoint_memory=-1 is not valid"),
        ({"entrypoint_memory": 10**400}, "entrypoint_memory=1000"),
        ({"entrypoint_resources": {"a": -1}}, "entrypoint_resources.a=-1 is not valid"),
        ({"entrypoint_resources": 5}, "entrypoint_resources=5 is not valid"),
        ({"entrypoint_label_selector": {"role": 1}}, "entrypoint_label_selector.role=1 is not valid"),
        ({"shell": True}, "shell=True is not valid: Extra inputs are not permitted"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_invalid_field_error_names_field_and_value(fields: dict[str, Any], start: str) -> None:
    message = refused(**fields)
    assert start in message
    assert len(message.splitlines()) == 1
    assert len(message) < 300
    assert message.endswith("; correct it and submit again.")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b'{"entrypoint": "\\ud800"}', b"[" * 10_000, b"9" * 10_000]
)
def test_body_must_be_json_object(body: bytes) -> None:
    message = refusal(body)
    assert message.startswith("The body is not valid: ")
    assert len(message.splitlines()) == 1


# --- NUL characters ---


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"entrypoint": "a\0"}).encode(),
        json.dumps({"entrypoint": "a\\\0"}).encode(),
        json.dumps({"entrypoint": "a", "metadata": {"b\0": "c"}}).encode(),
        json.dumps({"entrypoint": "a", "runtime_env": {"env_vars": {"b": "\0"}}}).encode(),
        b'{"entrypoint": "a\0"}',
    ],
)
def test_nul_character_is_rejected_everywhere(body: bytes) -> None:
    assert refusal(body) == "The submission contains a NUL character (\\u0000); remove it."


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "\\x00"])
def test_escaped_nul_text_is_accepted(text: str) -> None:
    assert parsed(entrypoint=text).entrypoint == text


# --- Ids ---


@pytest.mark.parametrize("field", ["submission_id", "job_id"])
@pytest.mark.parametrize(
    "job_id",
    [
        "a",
        "_",
        "raysubmit_0123456789ABCDEF",
        "a.b",
        "a..b",
        "a:b@c+d-e",
        "a--1",
        "a--1-0a1b2",
        "a--x-0a1b2c",
        "a" * 128,
    ],
)
def test_valid_requested_id_is_kept(field: str, job_id: str) -> None:
    assert parsed(**{field: job_id}).job().id == job_id


@pytest.mark.parametrize("field", ["submission_id", "job_id"])
@pytest.mark.parametrize(
    "job_id",
    [
        *("", ".", "..", "../a", ".hidden", "a/b", "/a", "a\\b", "a%2fb", "-a", ":a", "+a", "@a"),
        *("a b", "a\n", "a\r", "a\t", "ä", "a?b", "a#b", "a'b", "a" * 129),
    ],
)
def test_invalid_id_is_rejected(field: str, job_id: str) -> None:
    assert f"{field}={job_id!r}"[:100] in refused(**{field: job_id})


@pytest.mark.parametrize("job_id", ["a--1-0a1b2c", "a--12-ffffff", "a--1-0a1b2c--2-0a1b2c"])
def test_id_with_attempt_suffix_is_rejected(job_id: str) -> None:
    assert "are reserved for the platform" in refused(submission_id=job_id)
    assert "are reserved for the platform" in refused(job_id=job_id)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"entrypoint": "é" * 60_000}, "entrypoint"),
        ({"runtime_env": {"env_vars": {"A": "a" * 110_000}}}, "runtime_env"),
        ({"runtime_env": {"env_vars": {f"V{number}": "a" for number in range(20_000)}}}, "runtime_env"),
        ({"metadata": {"note": "a" * 110_000}}, "metadata"),
        ({"runtime_env": {"env_vars": {"A": "a" * 60_000}}, "metadata": {"note": "a" * 60_000}}, "metadata"),
    ],
)
def test_part_too_large_for_a_process_is_rejected(fields: dict[str, Any], part: str) -> None:
    sentence = refused(**fields)
    assert part in sentence
    assert "more than the 100 KiB" in sentence
    assert len(sentence) < 400


def test_large_parts_below_the_limit_are_accepted() -> None:
    parsed(entrypoint="a" * 100_000, runtime_env={"env_vars": {"A": "a" * 60_000}}, metadata={"note": "a" * 40_000})


def test_generated_ids_are_unique_and_in_rays_format() -> None:
    ids = {parsed().job().id for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch("raysubmit_[A-Za-z0-9]{16}", job_id) for job_id in ids)
    assert not any(ATTEMPT_ID.search(job_id) for job_id in ids)


# --- Metadata ---


def test_job_without_platform_metadata_gets_defaults() -> None:
    job = parsed(metadata={"note": "x"}).job()
    assert (job.max_restarts_on_loss, job.max_restarts_on_failure) == (3, 0)
    assert (job.user, job.wait_for_capacity, job.workers, job.limit_s) == ("", False, None, None)
    assert (job.state, job.message) == (State.WAITING, "Job has not started yet.")
    assert job.created == job.not_before
    assert abs((datetime.now(UTC) - job.created).total_seconds()) < 60


def test_metadata_sets_job_options() -> None:
    options = {"user": "ann", "max_restarts_on_loss": "0", "max_restarts_on_failure": "2", "wait_for_capacity": "true"}
    job = parsed(metadata={**options, "workers": "2", "worker_cpus": "0.5", "worker_gpus": "1"}).job()
    assert (job.max_restarts_on_loss, job.max_restarts_on_failure) == (0, 2)
    assert (job.user, job.wait_for_capacity) == ("ann", True)
    assert group_of(job.workers) == WorkerGroup(2, 0.5, 1)


@pytest.mark.parametrize(("text", "seconds"), [("1s", 1), ("90m", 5400), ("4h", 14400), ("366d", 366 * 86400)])
def test_metadata_sets_time_limit(text: str, seconds: float) -> None:
    job = parsed(metadata={"time_limit": text}).job()
    assert (job.limit_s, job.job_metadata) == (seconds, {"time_limit": text})


def test_worker_group_defaults_to_one_cpu_each() -> None:
    assert group_of(parsed(metadata={"workers": "3"}).job().workers) == WorkerGroup(3, 1, 0)
    assert group_of(parsed(metadata={"worker_gpus": "3"}).job().workers) is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((key, value) for key in RESTARTS for value in ("-1", "1001", "many", "1.5", "")),
        *(("workers", value) for value in ("0", "-1", "two", "10001")),
        *((option, value) for option in ("worker_cpus", "worker_gpus") for value in ("-1", "nan", "inf", "1e999", "x")),
        ("wait_for_capacity", "perhaps"),
        *(("time_limit", value) for value in ("", "4", "4 h", "1.5h", "-4h", "0h", "367d", "999999w", "nan")),
    ],
)
def test_invalid_job_option_is_rejected(option: str, value: str) -> None:
    message = refused(metadata={option: value})
    assert message.startswith(f"{option}='{value}' is not valid: ")
    assert len(message.splitlines()) == 1


# --- Reserved resources ---


def test_entrypoint_request_contains_only_given_fields() -> None:
    assert parsed().entrypoint_request() == {}
    assert parsed(entrypoint_num_cpus=0, entrypoint_memory=None).entrypoint_request() == {"entrypoint_num_cpus": 0}
    assert parsed(**WHOLE).entrypoint_request() == {
        name: value for name, value in WHOLE.items() if "entrypoint_" in name
    }


@pytest.mark.parametrize(
    ("fields", "amounts"),
    [
        ({}, {}),
        ({"entrypoint_num_cpus": 0, "entrypoint_memory": 0}, {}),
        ({"entrypoint_num_cpus": 2, "entrypoint_num_gpus": 0.5}, {"CPU": 2, "GPU": 0.5}),
        ({"entrypoint_memory": 1 << 30}, {"memory": 1 << 30}),
        ({"entrypoint_memory": 5, "entrypoint_resources": {"a": 1}}, {"a": 1, "memory": 5}),
    ],
)
def test_entrypoint_request_reserves_its_resources(fields: dict[str, Any], amounts: dict[str, float]) -> None:
    entry = parsed(**fields).entrypoint_request()
    before = json.dumps(entry)
    reserved = resources_of(entry)
    assert isinstance(reserved, Resources)
    assert reserved.amounts() == amounts
    assert json.dumps(entry) == before


# --- Details ---


def attempt(number: int, ray_job_id: str) -> AttemptRow:
    driver = {"id": ray_job_id, "node_ip_address": "10.0.0.1", "pid": "7"}
    agent = "http://10.0.0.1:52365"
    return AttemptRow(number=number, ray_job_id=ray_job_id, driver=driver, agent=agent, node_id=f"node-{number}")


@pytest.mark.parametrize("attempts", [0, 1, 2])
@pytest.mark.parametrize("state", State)
def test_job_details_have_rays_fields(state: State, attempts: int) -> None:
    job = parsed(**WHOLE).job()
    job.state, job.attempts = state, [attempt(n, f"0{n}000000") for n in range(1, attempts + 1)]
    if state.final:
        job.ended, job.exit_code, job.error_type = datetime.now(UTC), 1, "JOB_ENTRYPOINT_COMMAND_ERROR"
    given = job_details(job, job.last_attempt)
    assert list(given) == list(JobDetails.model_fields)
    details = JobDetails(**json.loads(json.dumps(given)))
    assert json.loads(details.model_dump_json()) == given
    assert (details.job_id, details.driver_node_id) == (
        (f"0{attempts}000000", f"node-{attempts}") if attempts else (None, None)
    )


def test_times_are_unix_milliseconds() -> None:
    job = parsed().job()
    job.created, job.ended = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    details = job_details(job, None)
    assert (details["start_time"], details["end_time"]) == (1000, 60_000)


@pytest.mark.parametrize(
    "runtime_env",
    [{}, {"env_vars": {}}, {"env_vars": {"A": "secret", "B": ""}, "pip": ["x"]}, {"env_vars": None}, {"env_vars": "A"}],
)
def test_secrets_are_redacted_like_rays(runtime_env: dict[str, Any]) -> None:
    before = json.dumps(runtime_env)
    assert redacted(runtime_env) == redact_runtime_env(runtime_env)
    assert json.dumps(runtime_env) == before


def test_details_redact_secrets_only_on_request() -> None:
    job = parsed(runtime_env={"env_vars": {"A": "secret"}}).job()
    assert job_details(job, None)["runtime_env"] == {"env_vars": {"A": "secret"}}
    assert "secret" not in json.dumps(job_details(job, None, redact=True))
