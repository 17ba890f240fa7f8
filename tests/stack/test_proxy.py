"""The TLS entrance in front of the running stack: clients, pages, protection and limits."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import socket
import ssl
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import httpx
import pytest
from boto3.s3.transfer import TransferConfig
from browser import BOUND_S, Page, opened
from failure_training import container_state, crash_until_healthy, outage
from figures import count
from host import CHECKOUT, Stack, run, wait_for
from lab_client import printed_by_cell
from secret_search import leaks, of_services, shown_by
from test_security import CLOSED, PAGES, params, port, refuses, running_services

from mlplatform.client.jobs import Jobs
from mlplatform.secrets.credentials import read_mlflow_account, read_s3_account
from mlplatform_stack import entrance, generated

ADDRESS = "127.0.0.2"

DOMAIN = "ml.test"

HTTPS_PORT = 18443

NAMES = {service: page.facts["names"] for service, page in PAGES.items()}
"""Names below the domain, on the port of all names."""

BELOW = {service: f"*.{page.facts['below']}" for service, page in PAGES.items() if "below" in page.facts}
"""All names below one."""


@pytest.fixture(scope="module")
def proxied(running: Stack) -> Iterator[Stack]:
    """The running stack with the entrance started beside it; nothing else is touched."""
    profiles = f"{running.settings.compose_profiles},proxy"
    with running.changed(BIND_ADDRESS=ADDRESS, COMPOSE_PROFILES=profiles, DOMAIN=DOMAIN, HTTPS_PORT=str(HTTPS_PORT)):
        try:
            running.compose("up", "--detach", "--no-deps", "--no-build", "--wait", "proxy")
            entrance.write_certificates(running.root)
            yield running
        finally:
            running.compose("rm", "--stop", "--force", "proxy")


def authority(stack: Stack) -> ssl.SSLContext:
    """Trust in the entrance's authority and in no other."""
    return ssl.create_default_context(cafile=str(stack.root / entrance.CERTIFICATE))


def address(stack: Stack, service: str) -> str:
    return f"https://{ADDRESS}:{port(stack, service)}"


def environment(stack: Stack) -> dict[str, str]:
    """The variables that `mlplatform env` exports, with the address in place of a name that no DNS has."""
    exported = run(str(CHECKOUT / ".venv/bin/mlplatform"), "env", cwd=stack.root).stdout
    found = dict(re.findall(r"^export (\w+)=(.*)$", exported, re.M))
    values = {
        name: value.strip("'").replace(f"https://{DOMAIN}:", f"https://{ADDRESS}:") for name, value in found.items()
    }
    assert values["RAY_ADDRESS"] == address(stack, "gateway")
    assert {"AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"} <= set(values)
    return {**os.environ, **values}


def s3(stack: Stack) -> Any:
    key, secret = read_s3_account(stack.root / "secrets" / "s3_people")
    account = {"aws_access_key_id": key, "aws_secret_access_key": secret, "region_name": "us-east-1"}
    return boto3.client(
        "s3", endpoint_url=address(stack, "minio"), verify=str(stack.root / entrance.CERTIFICATE), **account
    )


def sites(stack: Stack, service: str) -> Iterator[tuple[str, int]]:
    """Host name and port of each site of a service; the host is empty for the address itself."""
    own = port(stack, service)
    yield from (("", own), (DOMAIN, own), (f"{NAMES[service][0]}.{DOMAIN}", own))
    yield from ((f"{name}.{DOMAIN}", HTTPS_PORT) for name in NAMES[service])
    if service in BELOW:
        yield from ((f"{BELOW[service].replace('*', 'any')}.{DOMAIN}", number) for number in (own, HTTPS_PORT))


@pytest.mark.parametrize("service", params(*CLOSED))
def test_entrance_passes_no_request_without_credentials(proxied: Stack, service: str) -> None:
    served = {}
    for name, number in sites(proxied, service):
        url = f"https://{ADDRESS}:{number}"
        extra: dict[str, Any] = {"extensions": {"sni_hostname": name}} if name else {}
        headers = {"Host": f"{name}:{number}"} if name else {}
        with httpx.Client(base_url=url, headers=headers, verify=authority(proxied), timeout=20) as client:
            for method, path in CLOSED[service]:
                answer = client.request(method, path, **extra)
                count("requests without credentials through TLS")
                if not refuses(answer):
                    served[f"{method} {name}:{number}{path}"] = answer.status_code
    assert not served


def test_every_site_of_entrance_is_tried_without_credentials(proxied: Stack) -> None:
    written = re.findall(r"https://([^\s,{]*)\{\$(\w+)\}(?::(\d+))?", (proxied.root / generated.SITES).read_text())
    names = {name.rstrip(".") for name, variable, inside in written if variable == "DOMAIN" and not inside}
    running = set(running_services(proxied))
    assert names == {name for service in running for name in NAMES[service]} | {
        BELOW[name] for name in running & BELOW.keys()
    }
    published = {
        binding["HostPort"]
        for entry in proxied.containers()
        for bindings in (entry["NetworkSettings"]["Ports"] or {}).values()
        for binding in bindings or []
        if binding["HostIp"] == ADDRESS
    }
    tried = {str(number) for service in running_services(proxied) for _, number in sites(proxied, service)}
    assert published == tried


def test_certificate_is_of_own_authority_only(proxied: Stack) -> None:
    url = address(proxied, "gateway") + "/platform/health"
    assert httpx.get(url, verify=authority(proxied)).status_code == httpx.codes.OK
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(url)
    plain = httpx.get(url.replace("https", "http"))
    assert plain.status_code == httpx.codes.BAD_REQUEST


def test_mlflow_client_logs_artifact_through_tls(proxied: Stack, tmp_path: Path) -> None:
    script = """
import mlflow, sys
mlflow.set_experiment("through-tls")
with mlflow.start_run() as run:
    mlflow.log_metric("loss", 0.5)
    mlflow.log_text("artifact", "note.txt")
print(mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/note.txt"))
"""
    account = read_mlflow_account(proxied.root / "secrets" / "mlflow_person")
    variables = dict(zip(("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"), account, strict=True))
    variables |= {"MLFLOW_TRACKING_AUTH": "", "HOME": str(tmp_path)}
    python = str(CHECKOUT / ".venv/bin/python")
    assert run(python, "-c", script, env={**environment(proxied), **variables}).stdout.splitlines()[-1] == "artifact"


def test_mlflow_accepts_entrances_own_origin_only(proxied: Stack) -> None:
    url = address(proxied, "mlflow")
    account = read_mlflow_account(proxied.root / "secrets" / "mlflow_person")
    with httpx.Client(base_url=url, auth=account, verify=authority(proxied), timeout=30) as client:
        search = ("/ajax-api/2.0/mlflow/experiments/search",)
        own = client.post(*search, json={"max_results": 1}, headers={"Origin": url})
        assert own.status_code == httpx.codes.OK, own.text
        other = client.post(*search, json={"max_results": 1}, headers={"Origin": "https://evil.test"})
        assert other.status_code == httpx.codes.FORBIDDEN


@pytest.mark.nightly
@pytest.mark.minio
def test_upload_of_a_gigabyte_passes_in_parts(proxied: Stack, tmp_path: Path) -> None:
    file, size, key = tmp_path / "large", 1 << 30, f"through-tls/{uuid.uuid4().hex}"
    with file.open("wb") as out:
        out.truncate(size - 4)
        out.seek(0, os.SEEK_END)
        out.write(b"last")
    client = s3(proxied)
    client.upload_file(str(file), "ray", key, Config=TransferConfig(multipart_chunksize=64 << 20))
    try:
        assert client.head_object(Bucket="ray", Key=key)["ContentLength"] == size
        assert client.get_object(Bucket="ray", Key=key, Range="bytes=-4")["Body"].read() == b"last"
    finally:
        client.delete_object(Bucket="ray", Key=key)


@pytest.mark.minio
def test_presigned_url_works_through_tls(proxied: Stack) -> None:
    client, key = s3(proxied), f"through-tls/{uuid.uuid4().hex}"
    client.put_object(Bucket="ray", Key=key, Body=b"signed")
    try:
        url = client.generate_presigned_url("get_object", Params={"Bucket": "ray", "Key": key}, ExpiresIn=60)
        assert url.startswith(address(proxied, "minio"))
        assert httpx.get(url, verify=authority(proxied)).content == b"signed"
    finally:
        client.delete_object(Bucket="ray", Key=key)


def test_prometheus_answers_through_tls(proxied: Stack) -> None:
    account = ("prometheus", proxied.secret("prometheus_password"))
    url = address(proxied, "prometheus") + "/api/v1/query?query=up"
    assert httpx.get(url, auth=account, verify=authority(proxied)).json()["status"] == "success"


def test_session_cookie_is_for_tls_only(proxied: Stack) -> None:
    url = address(proxied, "gateway") + "/platform/login"
    answer = httpx.post(url, data={"token": proxied.secret("ray_token")}, verify=authority(proxied))
    assert answer.status_code == httpx.codes.SEE_OTHER
    assert "secure" in answer.headers["Set-Cookie"].lower()


@pytest.mark.nightly
def test_entrance_shows_no_secret_of_an_address(proxied: Stack) -> None:
    url = f"{address(proxied, 'notebook')}/lab?token={proxied.secret('notebook_token')}"
    assert httpx.get(url, verify=authority(proxied)).is_success
    with outage(proxied, "notebook"):
        # An error is what servers log with its address.
        assert httpx.get(url, verify=authority(proxied), timeout=60).status_code == httpx.codes.BAD_GATEWAY
    wait_for(lambda: container_state(proxied, "notebook")[1] == "healthy", "the notebook")
    assert not leaks(proxied.root / "secrets", shown_by(of_services(proxied, "proxy", "notebook")))


def test_half_sent_headers_are_cut(proxied: Stack) -> None:
    raw = socket.create_connection((ADDRESS, proxied.settings.ray_port), timeout=30)
    started = time.monotonic()
    with authority(proxied).wrap_socket(raw, server_hostname=ADDRESS) as opened:
        opened.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.2\r\nX-Slow: ")
        while opened.recv(4096):
            pass
    assert time.monotonic() - started < 20


def test_oversized_headers_are_rejected(proxied: Stack) -> None:
    headers = {"X-Large": "a" * (64 << 10)}
    answer = httpx.get(address(proxied, "gateway") + "/platform/health", headers=headers, verify=authority(proxied))
    assert answer.status_code == httpx.codes.REQUEST_HEADER_FIELDS_TOO_LARGE


def test_status_writes_missing_certificate_of_authority(proxied: Stack) -> None:
    (proxied.root / entrance.CERTIFICATE).unlink()
    run(str(CHECKOUT / ".venv/bin/mlplatform"), "stack", "status", cwd=proxied.root)
    assert authority(proxied).cert_store_stats()["x509_ca"] == 1


@pytest.mark.nightly
def test_main_job_trains_and_logs_through_tls(proxied: Stack) -> None:
    ray = str(CHECKOUT / ".venv/bin/ray")
    submit = ("job", "submit", "--working-dir", str(proxied.root / "jobs"), "--", "python", "digits.py", "--epochs=2")
    output = run(ray, *submit, env=environment(proxied)).stdout
    assert "succeeded" in output, output[-3000:]
    job_id = re.findall(r"raysubmit_\w+", output)[0]
    account = read_mlflow_account(proxied.root / "secrets" / "mlflow_person")
    mlflow = address(proxied, "mlflow")
    (found,) = proxied.runs_of(job_id)
    with httpx.Client(base_url=mlflow, auth=account, verify=authority(proxied), timeout=60) as client:
        run_id = {"run_id": found["info"]["run_id"]}
        seen = client.get("/api/2.0/mlflow/runs/get", params=run_id).raise_for_status().json()["run"]
        assert seen["info"]["status"] == "FINISHED"
        assert {"test_accuracy", "val_accuracy"} <= {metric["key"] for metric in seen["data"]["metrics"]}
        picture = {"path": "confusion_matrix.png", "run_uuid": run_id["run_id"]}
        assert client.get("/get-artifact", params=picture).raise_for_status().content.startswith(b"\x89PNG")
    assert any(key.endswith("checkpoint.ckpt") for key in proxied.objects("ray", f"{job_id}/"))


def test_jupyterlab_of_job_runs_cell_through_tls(proxied: Stack, jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.submit("exec sleep 1000", tmp_path)
    try:
        wait_for(lambda: jobs.get(job).status == "RUNNING", "the job", 60)
        name = f"ray.{DOMAIN}"
        headers = {"Host": f"{name}:{HTTPS_PORT}", "Authorization": f"Bearer {proxied.secret('ray_token')}"}
        with httpx.Client(
            base_url=f"https://{ADDRESS}:{HTTPS_PORT}", headers=headers, verify=authority(proxied)
        ) as client:
            answer = client.post(f"/platform/jobs/{job}/lab", extensions={"sni_hostname": name}).raise_for_status()
        opened = urlsplit(answer.json()["address"])
        assert (opened.scheme, opened.netloc[16:]) == ("https", f".lab.{DOMAIN}:{HTTPS_PORT}")
        code = "import os; print(os.environ['MLPLATFORM_JOB_ID'])"
        assert printed_by_cell(opened, code, ADDRESS, authority(proxied)) == f"{job}\n"
    finally:
        jobs.stop(job)
        jobs.wait(job, timeout_s=60)


@pytest.fixture
def tls_page(proxied: Stack, tmp_path: Path) -> Iterator[Page]:
    """A page of a browser that accepts the entrance's certificate and no other unknown one."""
    served = ssl.get_server_certificate((ADDRESS, proxied.settings.ray_port))
    key = run("openssl", "x509", "-pubkey", "-noout", input=served).stdout
    der = base64.b64decode("".join(key.strip().splitlines()[1:-1]))
    with opened(tmp_path / "browser", base64.b64encode(hashlib.sha256(der).digest()).decode()) as page:
        yield page


def test_front_page_logs_in_through_tls(proxied: Stack, tls_page: Page) -> None:
    tls_page.go(f"{address(proxied, 'gateway')}/platform/")
    tls_page.wait_for_text("Log in", "the login page")
    tls_page.evaluate(f"document.querySelector('input').value = {proxied.secret('ray_token')!r}")
    tls_page.click("button")
    tls_page.wait_for_text("ray-worker-1", "the nodes")
    links = tls_page.evaluate("[...document.querySelectorAll('#tools a')].map(tool => tool.href)")
    assert f"{address(proxied, 'notebook')}/" in links, links
    assert all(link.startswith(f"https://{ADDRESS}:") for link in links), links
    assert tls_page.evaluate("isSecureContext")


@pytest.mark.usefixtures("trained")
def test_mlflow_page_shows_experiments_through_tls(proxied: Stack, tls_page: Page) -> None:
    tls_page.authenticate(*read_mlflow_account(proxied.root / "secrets" / "mlflow_person"))
    tls_page.go(f"{address(proxied, 'mlflow')}/#/experiments")
    tls_page.wait_for_text("digits", "the experiment of the main job")


def test_jupyterlab_runs_terminal_through_tls(proxied: Stack, tls_page: Page) -> None:
    tls_page.resize(1280, 900)
    tls_page.go(f"{address(proxied, 'notebook')}/lab?reset")
    wait_for(lambda: tls_page.evaluate("!!document.querySelector('#password_input')"), "the login page", BOUND_S)
    tls_page.type(proxied.secret("notebook_token"), into="#password_input")
    tls_page.click("#login_submit")
    card = '.jp-LauncherCard[title="Start a new terminal session"]'
    wait_for(lambda: tls_page.evaluate(f"!!document.querySelector('{card}')"), "the launcher", BOUND_S)
    tls_page.click(card)
    wait_for(lambda: tls_page.evaluate("!!document.querySelector('.xterm-helper-textarea')"), "a terminal", BOUND_S)
    made = f"/tmp/through-tls-{uuid.uuid4().hex}"
    tls_page.type(f"touch {made}", into=".xterm-helper-textarea")
    tls_page.press_enter()
    wait_for(
        lambda: proxied.execute("notebook", "test", "-e", made, check=False).returncode == 0, "the command", BOUND_S
    )


@pytest.mark.nightly
def test_entrance_crashes_idle_and_under_a_job_without_loss(proxied: Stack, tmp_path: Path) -> None:
    url, trusted = f"{address(proxied, 'gateway')}/platform/health", authority(proxied)
    crash_until_healthy(proxied, "proxy")
    assert httpx.get(url, verify=trusted).is_success, "it has another authority"

    ray = [str(CHECKOUT / ".venv/bin/ray"), "job"]
    script = "import time\nfor number in range(30): print('line', number, flush=True); time.sleep(1)"
    (tmp_path / "job.py").write_text(script)
    submit = ("submit", "--no-wait", "--working-dir", str(tmp_path), "--", "python", "job.py")
    job_id = re.findall(r"raysubmit_\w+", run(*ray, *submit, env=environment(proxied)).stdout)[0]

    def log() -> str:
        return run(*ray, "logs", job_id, env=environment(proxied)).stdout

    wait_for(lambda: "line 1" in log(), "the job to run", 120)
    crash_until_healthy(proxied, "proxy")
    wait_for(lambda: "succeeded" in run(*ray, "status", job_id, env=environment(proxied)).stdout, "the job", 120)
    assert re.findall(r"line (\d+)", log()) == [str(number) for number in range(30)]


@pytest.mark.nightly
def test_rotation_replaces_authority(proxied: Stack) -> None:
    url, former = f"{address(proxied, 'gateway')}/platform/health", authority(proxied)
    assert httpx.get(url, verify=former).is_success
    proxied.make("rotate", "ONLY=certificates")
    assert wait_for(lambda: httpx.get(url, verify=authority(proxied)).is_success, "the new certificate")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(url, verify=former)
