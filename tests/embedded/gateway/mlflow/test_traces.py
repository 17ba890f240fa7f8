"""Traces on the stack's MLflow server: their files are stored and read there only."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from guarded_mlflow import Server, refused


def span_with(tags: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """A trace's id and its only span, in OpenTelemetry's JSON, with tags of the trace."""
    trace = uuid.uuid4().hex
    attributes = [{"key": f"mlflow.traceTag.{key}", "value": {"stringValue": value}} for key, value in tags.items()]
    span = {"traceId": trace, "spanId": trace[:16], "name": "probe", "attributes": attributes}
    span |= {"startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    return f"tr-{trace}", {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def test_trace_cannot_be_placed_elsewhere(server: Server) -> None:
    experiment = server.call("job", "POST", "experiments/create", {"name": "traces"})["experiment_id"]
    location = {"key": "mlflow.artifactLocation", "value": "s3://jobs/x"}
    old = {"experiment_id": experiment, "timestamp_ms": 1, "request_metadata": [], "tags": [location]}
    assert refused(server.send("job", "POST", "traces", old), "is not this server's")
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}
    info = {"trace_id": "tr-1", "trace_location": place, "request_time": "2026-11-01T00:00:00Z", "state": "OK"}
    path = "/api/3.0/mlflow/traces"
    for tags in ({location["key"]: location["value"]}, {location["key"]: "mlflow-artifacts:/../x"}):
        answer = server.send("job", "POST", path, {"trace": {"trace_info": {**info, "tags": tags}}})
        assert refused(answer, "is not this server's"), answer.text
    assert server.send("job", "POST", path, {"trace": {"trace_info": info}}).is_success
    for key in (location["key"], "mlflow.trace.archiveLocation"):
        for version in ("2.0", "3.0"):
            values = {**location, "key": key}
            answer = server.send("job", "PATCH", f"/api/{version}/mlflow/traces/tr-1/tags", values)
            # MLflow itself refuses some of these since 3.17.
            assert refused(answer, "is not this server's") or "is immutable" in answer.text, (key, answer.text)
        ended = {"timestamp_ms": 2, "status": "OK", "request_metadata": [], "tags": [{**location, "key": key}]}
        assert refused(server.send("job", "PATCH", "traces/tr-1", ended), "is not this server's")
    tag = {"key": "team", "value": "vision"}
    assert server.send("job", "PATCH", "/api/3.0/mlflow/traces/tr-1/tags", tag).is_success


def test_files_of_trace_are_read_from_this_server_only(server: Server, tmp_path: Path) -> None:
    attachment = str(uuid.uuid4())
    (tmp_path / "attachments").mkdir()
    (tmp_path / "attachments" / attachment).write_text("stolen")
    (tmp_path / "traces.pb").write_text("stolen")
    headers = {"x-mlflow-experiment-id": "0"}
    archive = {"mlflow.trace.spansLocation": "ARCHIVE_REPO", "mlflow.trace.archiveLocation": str(tmp_path)}
    for tags, path in ((archive, ""), ({"mlflow.artifactLocation": str(tmp_path)}, attachment)):
        trace, spans = span_with(tags)
        answer = server.send("job", "POST", "/v1/traces", spans, headers=headers)
        assert "is not this server's" in answer.text, (tags, answer.status_code, answer.text)
        values = {"request_id": trace} | ({"path": path} if path else {})
        answer = server.send("job", "GET", "/ajax-api/2.0/mlflow/get-trace-artifact", values)
        assert not answer.is_success, (tags, answer.text)
    trace, spans = span_with({})
    assert server.send("job", "POST", "/v1/traces", spans, headers=headers).is_success
    values = {"request_id": trace}
    assert server.call("job", "GET", "/ajax-api/2.0/mlflow/get-trace-artifact", values)["spans"]
