"""Rules of the stack's MLflow server, on a real one with accounts, SQLite and a folder for artifacts."""

from __future__ import annotations

import httpx
from guarded_mlflow import FILES, PASSWORD, Server, refused
from waiting import wait_for


def test_artifacts_elsewhere_are_refused(server: Server) -> None:
    for number, field in enumerate(("artifact_location", "artifactLocation")):
        for place in ("/tmp/probe", "s3://jobs/probe", "mlflow-artifacts:/../x", "mlflow-artifacts://host/x"):
            values = {"name": f"elsewhere-{number}", field: place}
            answer = server.send("job", "POST", "experiments/create", values)
            assert answer.status_code in (400, 403), (place, answer.text)
    values = {"name": "elsewhere", "artifact_location": "s3://jobs/probe"}
    assert refused(server.send("job", "POST", "experiments/create", values), "is not this server's")
    assert server.send("job", "POST", "experiments/create", {"name": "assigned"}).is_success
    server.call("job", "POST", "registered-models/create", {"name": "elsewhere"})
    for source in ("s3://jobs/x", "mlflow-artifacts:/0", "https://example.org/x"):
        version = {"name": "elsewhere", "source": source}
        answer = server.send("job", "POST", "model-versions/create", version)
        assert answer.status_code in (400, 403), (source, answer.text)


def until_reported(server: Server, account: str, method: str, path: str, **values: str) -> None:
    """Wait for the report of one change."""
    wanted = {"account": account, "method": method, "path": f"/api/2.0/mlflow/{path}", "address": "127.0.0.1"}
    change = {**wanted, "values": values}
    wait_for(lambda: change in server.changes, f"a report of {change}")


def test_changes_that_others_rely_on_are_reported(server: Server) -> None:
    _, answer = server.register("alice", "moved")
    server.call("job", "POST", "registered-models/alias", {"name": "moved", "alias": "champion", "version": "1"})
    server.call("person", "POST", "registered-models/rename", {"name": "moved", "new_name": "moved-on"})
    server.call("alice", "DELETE", "registered-models/delete", {"name": "moved-on"})
    run = answer.json()["model_version"]["run_id"]
    until_reported(server, "alice", "POST", "model-versions/create", name="moved", run_id=run)
    until_reported(server, "job", "POST", "registered-models/alias", name="moved", alias="champion", version="1")
    until_reported(server, "person", "POST", "registered-models/rename", name="moved", new_name="moved-on")
    until_reported(server, "alice", "DELETE", "registered-models/delete", name="moved-on")
    assert 'change {"account": "job"' in server.log.read_text()


def test_passwords_are_never_reported(server: Server) -> None:
    values = {"username": "carol", "password": "a-password-of-carol"}
    server.call("gateway", "POST", "users/create", values)
    server.call("gateway", "DELETE", "users/delete", {"username": "carol"})
    until_reported(server, "gateway", "POST", "users/create", username="carol")
    until_reported(server, "gateway", "DELETE", "users/delete", username="carol")
    assert "a-password-of-carol" not in server.log.read_text()


def test_calls_that_log_and_refused_ones_are_not_reported(server: Server) -> None:
    run = server.call("job", "POST", "runs/create", {"experiment_id": "0"})["run"]["info"]["run_id"]
    server.call("job", "POST", "runs/log-parameter", {"run_id": run, "key": "lr", "value": "1"})
    server.call("job", "POST", "runs/delete-tag", {"run_id": run, "key": "mlflow.runName"})
    assert not server.send("job", "DELETE", "registered-models/delete", {"name": "none"}).is_success
    server.call("job", "POST", "runs/delete", {"run_id": run})
    until_reported(server, "job", "POST", "runs/delete", run_id=run)
    server.call("alice", "POST", "runs/restore", {"run_id": run})
    paths = {change["path"].removeprefix("/api/2.0/mlflow/") for change in server.changes if change["account"] == "job"}
    assert not paths & {"runs/create", "runs/log-parameter", "runs/delete-tag"}
    assert ("job", "none") not in {(one["account"], one["values"].get("name")) for one in server.changes}


def test_role_accounts_change_no_accounts_or_rights(server: Server) -> None:
    for prefix in ("/api", "/ajax-api"):
        for user in ("job", "person"):
            own = {"username": user, "password": "another-password", "current_password": f"{PASSWORD}{user}"}
            for method, path, values in (
                ("PATCH", "2.0/mlflow/users/update-password", own),
                ("GET", "2.0/mlflow/users/list", {}),
                ("GET", "2.0/mlflow/users/get", {"username": user}),
                ("POST", "3.0/mlflow/users/permissions/grant", {"username": user}),
                ("GET", "3.0/mlflow/roles/list", {}),
                ("GET", "2.0/mlflow/webhooks", {}),
            ):
                answer = server.send(user, method, f"{prefix}/{path}", values)
                assert refused(answer, f"The account '{user}' may not"), (path, answer.text)
            assert server.call(user, "GET", f"{prefix}/2.0/mlflow/users/current")["user"]["username"] == user
    assert server.send("job", "GET", "/signup").status_code == 403
    assert server.call("job", "GET", "experiments/get", {"experiment_id": "0"})


def test_person_changes_own_password_only(server: Server) -> None:
    change = {"password": "a-new-password-of-bob", "current_password": f"{PASSWORD}bob"}
    for name in ("alice", "job", "admin"):
        answer = server.send("bob", "PATCH", "users/update-password", {**change, "username": name})
        assert answer.status_code == 403, name
    assert server.send("bob", "PATCH", "users/update-password", {**change, "username": "bob"}).is_success
    server.call("gateway", "PATCH", "users/update-password", {"username": "bob", "password": f"{PASSWORD}bob"})
    assert server.call("bob", "GET", "users/current")


def test_people_delete_what_jobs_made_and_jobs_do_not(server: Server) -> None:
    made = server.call("job", "POST", "experiments/create", {"name": "of a job"})["experiment_id"]
    server.register("job", "of-a-job")
    version, model = {"name": "of-a-job", "version": "1"}, {"name": "of-a-job"}
    for method, path, values in (
        ("POST", "experiments/delete", {"experiment_id": made}),
        ("DELETE", "model-versions/delete", version),
        ("DELETE", "registered-models/delete", model),
    ):
        for prefix in ("/api/2.0/mlflow", "/ajax-api/2.0/mlflow"):
            answer = server.send("job", method, f"{prefix}/{path}", values)
            assert refused(answer, "The account 'job' may not"), (path, answer.text)
        assert server.send("job", method, f"/api/2.0//mlflow/{path}", values).status_code in (308, 403, 404), path
        assert server.send("alice", method, path, values).is_success, path


def test_account_of_prometheus_reads_metrics_only(server: Server) -> None:
    assert "mlflow_http_request_total" in server.send("prometheus", "GET", "/metrics").text
    for method, path in (("GET", "users/list"), ("POST", "experiments/search"), ("GET", f"{FILES}/0/x"), ("GET", "/")):
        assert refused(server.send("prometheus", method, path, {}), "The account 'prometheus' may not"), path


def test_second_credential_gives_job_no_other_rights(server: Server) -> None:
    made = server.call("job", "POST", "experiments/create", {"name": "two credentials"})["experiment_id"]
    address = f"{server.address}/api/2.0/mlflow/experiments/delete"
    right, other = (httpx.BasicAuth(user, PASSWORD + user)._auth_header for user in ("job", "nobody"))
    for headers in (
        [("X-MLflow-Authorization", other), ("Authorization", right)],
        [("Authorization", other), ("Authorization", right)],
        [("Authorization", right), ("Authorization", other)],
        [("Authorization", right.replace(" ", "\t"))],
        [("Authorization", right.replace(" ", "  "))],
        [("Authorization", right.replace("Basic", "bAsIc"))],
        [("Authorization", f"{right}=")],
        [("Authorization", "Bearer x")],
    ):
        status = httpx.post(address, json={"experiment_id": made}, headers=headers).status_code
        assert status in (401, 403), (headers, status)
    found = server.call("alice", "GET", "experiments/get", {"experiment_id": made})
    assert found["experiment"]["lifecycle_stage"] == "active"


def test_gateway_for_language_models_is_off(server: Server) -> None:
    values = {"secret_name": "x", "secret_value": {"api_key": "x"}, "provider": "openai"}
    paths = [f"/{api}/3.0/mlflow/gateway/secrets/create" for api in ("api", "ajax-api")]
    answers = [server.send("admin", "POST", path, values) for path in paths]
    assert all(answer.status_code == 501 for answer in answers), [answer.text for answer in answers]


def test_pages_of_other_origins_cannot_frame_any_answer(server: Server) -> None:
    for path in ("/", "/health", f"{FILES}/none", "/none"):
        headers = server.send("person", "GET", path).headers
        assert headers["X-Content-Type-Options"] == "nosniff", path
        assert headers["X-Frame-Options"] == "SAMEORIGIN", path


def test_browser_gets_page_that_sets_its_preferences_first(server: Server) -> None:
    html = {"Accept": "text/html"}
    first = server.send("person", "GET", "/", headers=html)
    assert '"mlflow.workflowType_v1": "machine_learning"' in first.text
    query = first.text.partition("location.replace(`")[2].partition("$")[0]
    assert query.startswith("?")
    page = server.send("person", "GET", f"/{query}", headers=html).text
    assert 'src="static-files/static/js/main.' in page
    assert server.send("person", "GET", "/").text == page, "a program gets MLflow's page"
    assert server.send("person", "GET", "/", headers=html, auth=None).status_code == 401


def test_server_writes_nothing_to_its_home(server: Server) -> None:
    assert server.send("person", "GET", "/").is_success
    assert list((server.log.parent / "home").rglob("*")) == []
