"""Protection of the stack's addresses, pages and secrets."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from figures import count
from host import CHECKOUT, Stack, Trained, run
from secret_search import leaks, shown_by, values

from mlplatform.secrets.credentials import read_mlflow_account
from mlplatform_stack import declared, services
from mlplatform_stack.services import STORE
from mlplatform_stack.settings import StackSettings

CONSOLE = "console"
"""MinIO's second page, in the tests."""


def _entries(service: declared.Service) -> list[dict[str, Any]]:
    return list(declared.facts(service).get("endpoints", ()))


SERVICES = declared.services(CHECKOUT, StackSettings.defaults(), generated=False)

PAGES = {
    CONSOLE if page.setting == "S3_CONSOLE_PORT" else page.service: page
    for page in services.pages(CHECKOUT, StackSettings.defaults())
}
"""Pages by their services, whose compose files say which of their paths are open and closed."""

# Open by design: health, login and static pages. They contain no data of jobs, runs or objects.
OPEN = {name: list(page.facts["open"]) for name, page in PAGES.items() if page.facts.get("open")}

# Paths that return data or have effects: all must reject missing and wrong credentials.
CLOSED = {name: [tuple(request.split(" ", 1)) for request in page.facts["closed"]] for name, page in PAGES.items()}

# Not published, but every user of the host and every container on their networks reaches them by address.
INTERNAL = {
    name: (entry["port"], [tuple(request.split(" ", 1)) for request in entry["closed"]])
    for name, service in SERVICES.items()
    for entry in _entries(service)
    if "title" not in entry
}


OF_STORE = (STORE, CONSOLE)


def params(*services: str) -> list[Any]:
    """Parameters of a test, of which those of the stack's own object store are for a stack that has one."""
    return [pytest.param(name, marks=pytest.mark.minio) if name in OF_STORE else name for name in services]


def running_services(stack: Stack) -> list[str]:
    """Those of `CLOSED` that this stack has."""
    return [service for service in CLOSED if stack.own_store or service not in OF_STORE]


def base_url(stack: Stack, service: str) -> str:
    return f"http://127.0.0.1:{port(stack, service)}"


def port(stack: Stack, service: str) -> int:
    """Port of a page on the host."""
    return next(page.port for page in services.pages(stack.root) if page.setting == PAGES[service].setting)


def refuses(answer: httpx.Response) -> bool:
    """Return whether a service asks for credentials; JupyterLab redirects browsers to its login page."""
    to_login = answer.status_code == 302 and answer.headers["Location"].startswith("/login")
    return answer.status_code in (401, 403) or to_login


def mlflow_paths() -> list[tuple[str, str]]:
    """Every method and path of MLflow's server and of its accounts, as its code registers them."""
    from mlflow.server import app
    from mlflow.server.auth import routes
    from mlflow.server.fastapi_app import create_fastapi_app

    found = {
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    found |= {
        (method, route.path)
        for route in create_fastapi_app(app).routes
        for method in getattr(route, "methods", None) or ()
    }
    of_accounts = [path for name, path in vars(routes).items() if name.isupper() and isinstance(path, str)]
    found |= {(method, path) for path in of_accounts for method in ("GET", "POST", "PATCH", "DELETE")}
    filled = {(method, re.sub(r"<[^>]+>|{[^}]+}", "x", path)) for method, path in found}
    return sorted(entry for entry in filled if entry[1].startswith("/"))


@pytest.mark.parametrize("service", params(*CLOSED))
@pytest.mark.parametrize("credentials", ["none", "wrong token", "wrong password"])
def test_protected_paths_require_valid_credentials(stack: Stack, service: str, credentials: str) -> None:
    headers = {"none": {}, "wrong token": {"Authorization": "Bearer wrong"}, "wrong password": {}}[credentials]
    auth = ("admin", "wrong") if credentials == "wrong password" else None
    answers = {}
    with httpx.Client(base_url=base_url(stack, service), headers=headers, auth=auth, timeout=20) as client:
        for method, path in CLOSED[service]:
            answer = client.request(method, path)
            answers[f"{method} {path}"] = 401 if refuses(answer) else answer.status_code
            count("requests without valid credentials")
    # MinIO answers 400 to an Authorization header that is not S3's.
    allowed = {400, 401, 403} if service == "minio" and credentials != "none" else {401, 403}
    served = {path: status for path, status in answers.items() if status not in allowed}
    assert not served, f"{service} answered {served} to a caller with credentials: {credentials}"


METRICS = {
    "prometheus_password": ("gateway", {"/platform/metrics"}),
    "store_prometheus_token": ("minio", {path for _, path in CLOSED["minio"] if "/v2/metrics/" in path}),
}
"""Tokens that Prometheus sends: the service and the paths that each opens."""


@pytest.mark.parametrize(
    "secret", ["prometheus_password", pytest.param("store_prometheus_token", marks=pytest.mark.minio)]
)
def test_token_of_metrics_opens_nothing_else(stack: Stack, secret: str) -> None:
    own, paths = METRICS[secret]
    headers, opened = {"Authorization": f"Bearer {stack.secret(secret)}"}, set()
    for service in running_services(stack):
        # MinIO answers 400 to an Authorization header that is not S3's.
        refused = {400, 401, 403} if service == "minio" else {401, 403, 429}
        with httpx.Client(base_url=base_url(stack, service), headers=headers, timeout=20) as client:
            for method, path in CLOSED[service]:
                answer = client.request(method, path)
                count("actions tried with accounts")
                if answer.status_code not in refused and not refuses(answer):
                    opened.add((service, path))
    assert opened == {(own, path) for path in paths}


def test_every_route_of_mlflow_requires_login(stack: Stack) -> None:
    paths = [entry for entry in mlflow_paths() if entry[1] not in {*OPEN["mlflow"], "/static-files/x"}]
    assert len(paths) > 500
    served = {}
    with httpx.Client(base_url=base_url(stack, "mlflow"), timeout=20) as client:
        for method, path in paths:
            answer = client.request(method, path)
            count("requests without valid credentials")
            if not refuses(answer):
                served[f"{method} {path}"] = answer.status_code
    assert not served


def test_account_of_jobs_deletes_nothing_at_mlflow(stack: Stack) -> None:
    """The server has the rights that the embedded tests compare with a table."""
    path, account = "/api/2.0/mlflow/experiments/delete", read_mlflow_account(stack.root / "secrets" / "mlflow_job")
    answer = httpx.post(base_url(stack, "mlflow") + path, json={"experiment_id": "999999"}, auth=account, timeout=20)
    assert answer.status_code == httpx.codes.FORBIDDEN


@pytest.mark.parametrize("service", INTERNAL)
@pytest.mark.parametrize("auth", [None, ("prometheus", "wrong")])
def test_services_without_published_port_require_password(
    stack: Stack, service: str, auth: tuple[str, str] | None
) -> None:
    number, paths = INTERNAL[service]
    for address in stack.addresses(service):
        for method, path in paths:
            answer = httpx.request(method, f"http://{address}:{number}{path}", auth=auth, timeout=20)
            count("requests without valid credentials")
            assert answer.status_code == httpx.codes.UNAUTHORIZED, path
    accepted = httpx.get(f"http://{address}:{number}/metrics", auth=("prometheus", stack.secret("metrics_password")))
    assert accepted.status_code == httpx.codes.OK


@pytest.mark.minio
def test_console_moves_no_object_without_session(stack: Stack, trained: Trained) -> None:
    # It passes these on to MinIO as nobody, and answers 500 with MinIO's reason.
    key = stack.objects("ray", f"{trained.id}/")[0]
    path = "/api/v1/buckets/ray/objects"
    with httpx.Client(base_url=base_url(stack, "console"), timeout=20) as client:
        download = client.get(f"{path}/download", params={"prefix": key})
        upload = client.post(f"{path}/upload", params={"prefix": "rights/"}, files={"1": ("probe", b"x")})
    for answer in (download, upload):
        count("requests without valid credentials")
        assert answer.is_error
        assert "Access Denied" in answer.text
    assert not stack.objects("ray", "rights/probe")


@pytest.mark.parametrize("service", params("gateway", "mlflow", "console", "notebook", "prometheus"))
def test_pages_stay_out_of_frames_of_others(stack: Stack, service: str) -> None:
    """Grafana permits frames, because Ray's dashboard embeds its panels."""
    headers = httpx.get(base_url(stack, service), follow_redirects=True, timeout=20).headers
    policy = headers.get("Content-Security-Policy", "")
    ancestors = re.findall(r"frame-ancestors ([^;]*)", policy)
    frames = ancestors[0].strip() if ancestors else headers.get("X-Frame-Options", "missing").lower()
    assert frames in ("'none'", "'self'", "deny", "sameorigin"), dict(headers)
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_lists_of_paths_are_those_of_all_services() -> None:
    assert PAGES.keys() >= {"gateway", "mlflow", STORE, CONSOLE, "notebook", "prometheus", "grafana"}
    assert INTERNAL.keys() >= {"alertmanager", "postgres-exporter"}
    assert all(CLOSED.values())
    assert all(paths for _, paths in INTERNAL.values())


@pytest.mark.parametrize("service", params(*OPEN))
def test_open_paths_need_no_credentials(stack: Stack, service: str) -> None:
    for path in OPEN[service]:
        answer = httpx.get(base_url(stack, service) + path)
        assert answer.status_code == httpx.codes.OK, path
        assert not any(stack.secret(name) in answer.text for name in ("ray_token", "notebook_token"))


def test_all_ports_listen_on_loopback(stack: Stack) -> None:
    published = [
        binding
        for entry in stack.containers()
        for bindings in (entry["NetworkSettings"]["Ports"] or {}).values()
        for binding in bindings or []
    ]
    assert {binding["HostIp"] for binding in published} == {"127.0.0.1"}
    count("published ports", len(published))
    tried = {str(port(stack, service)) for service in running_services(stack)}
    assert {binding["HostPort"] for binding in published} == tried, "no test tries this port without credentials"
    ports = {str(getattr(stack.settings, name)) for name in type(stack.settings).model_fields if name.endswith("_port")}
    listening = re.findall(r"LISTEN\s+\S+\s+\S+\s+(\S+):(\d+)\s", run("ss", "-tln").stdout)
    assert {address for address, port in listening if port in ports} == {"127.0.0.1"}


def test_no_secret_in_environments_command_lines_or_logs(stack: Stack, trained: Trained) -> None:
    places = shown_by(stack.containers())
    for node in ("ray-head", "ray-worker-0", "ray-worker-1"):
        everything = "find /tmp/ray/session_2*/logs -type f -exec cat {} +"
        lines = stack.execute(node, "bash", "-c", everything, check=False).stdout.splitlines()
        assert lines, f"nothing could be read on {node}"
        # The head logs the headers of websockets that it rejects. The gateway opens none, but tests that compare both
        # connect to the head directly, which users cannot.
        direct = [line for line in lines if "WebSocket handshake error" in line and "X-Forwarded-For" not in line]
        places[f"Ray's logs on {node}"] = "\n".join(line for line in lines if line not in direct)
    places["the job's log"] = trained.log
    assert not leaks(stack.root / "secrets", places)


def test_no_secret_in_images_or_checkout(stack: Stack) -> None:
    secrets = values(stack.root / "secrets").values()
    assert len(secrets) >= 18, "this test looks for the secrets in the wrong place"
    patterns = "\n".join(secrets)
    for name in ("platform", "ray", "proxy", "link", *([STORE] if stack.own_store else [])):
        image = f"mlplatform-{name}:{stack.settings.mlplatform_version}"
        history = run("docker", "history", "--no-trunc", "--format", "{{.CreatedBy}}", image).stdout
        config = run("docker", "image", "inspect", image).stdout
        assert not any(value in history + config for value in secrets)
        # Skip site-packages: gigabytes of libraries that no build step of ours writes into.
        search = "grep -rFl --exclude-dir=site-packages --file=- /opt /home /etc /root /tmp /usr/local /var; true"
        container = ("docker", "run", "--rm", "--interactive", "--network=none", "--user=0", "--entrypoint=sh", image)
        assert run(*container, "-c", search, input=patterns).stdout == ""
    tracked = run("git", "ls-files", cwd=CHECKOUT).stdout.splitlines()
    assert "README.md" in tracked
    assert [path for path in tracked if path.startswith("secrets/")] == []
    assert oct((stack.root / "secrets").stat().st_mode & 0o777) == "0o700"


WRITABLE = {"ray-head", "ray-worker-0", "ray-worker-1", "notebook"}
"""Jobs and notebooks install packages and write where they like."""


def test_containers_have_least_privilege_and_limits(stack: Stack) -> None:
    for entry in stack.containers():
        name, host, config = entry["Name"], entry["HostConfig"], entry["Config"]
        assert "ALL" in (host["CapDrop"] or []), name
        assert "no-new-privileges:true" in host["SecurityOpt"], name
        # The one-shot that changes owners has nothing else: no network, no secret, no process after the start.
        assert config["User"] not in ("", "0", "root") or name == f"/{stack.container('ownership')}", name
        service = config["Labels"]["com.docker.compose.service"]
        assert host["ReadonlyRootfs"] or service in WRITABLE, name
        assert "Test" in (config.get("Healthcheck") or {}) or host["RestartPolicy"]["Name"] == "no", name
        assert host["Memory"] > 0, name
        assert host["PidsLimit"] > 0, name
        assert host["LogConfig"]["Config"].get("max-size"), name
        assert not any("docker.sock" in (mount.get("Source") or "") for mount in entry["Mounts"]), name
