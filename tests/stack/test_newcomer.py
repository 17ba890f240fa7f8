"""The README's commands in a fresh clone, on a host with a strict umask, a proxy and the variables of other tools."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from host import CHECKOUT, ENV, Stack, notebook_of, run

OF_OTHER_TOOLS = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "AWS_PROFILE": "work",
    "AWS_ENDPOINT_URL": "https://s3.corp.example",
    "MLFLOW_TRACKING_URI": "https://mlflow.corp.example",
    "MLFLOW_TRACKING_TOKEN": "of another server",
    "RAY_ADDRESS": "ray://ray.corp.example:10001",
    "WANDB_API_KEY": "0" * 40,
    "COMPOSE_PROJECT_NAME": "blog",
    "COMPOSE_FILE": "/srv/blog/compose.yaml",
    "DOMAIN": "corp.example",
    "GRAFANA_PORT": "1",
}

INSIDE = re.compile(
    r"(.*\.)?localhost|127\..*|10\.213\.79\..*"
    r"|(newcomer-)?(gateway|mlflow|minio|postgres|ray-.*|prometheus|alertmanager|grafana|notebook)"
)
"""Hosts that no proxy is asked for."""

BAR = """
import sys, time
from tqdm import tqdm
for _ in tqdm(range(12), file=sys.stdout):
    time.sleep(0.5)
"""

ARTIFACT = """
import mlflow
name = "50% of a#b? ü.txt"
with mlflow.start_run() as run:
    mlflow.log_text("arrived", name)
print(mlflow.artifacts.load_text(f"{run.info.artifact_uri}/{name}"))
"""

WIDGET = "from tqdm.notebook import tqdm\nfor _ in tqdm(range(3)):\n    pass"


class Proxy:
    """A proxy for HTTP, at an address that containers reach as well; it notes the hosts that it is asked for."""

    def __init__(self) -> None:
        self.hosts = hosts = set[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hosts.add(str(urlsplit(self.path).hostname))
                with httpx.Client(trust_env=False, timeout=60) as client:
                    answer = client.request(self.command, self.path)
                self.send_response(answer.status_code)
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

            def log_message(self, *arguments: object) -> None:
                """Keep the tests' output clean."""

        bridge = "{{range .IPAM.Config}}{{.Gateway}}{{end}}"
        address = run("docker", "network", "inspect", "bridge", "--format", bridge).stdout.strip()
        self._server = ThreadingHTTPServer((address, 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = f"http://{address}:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Newcomer:
    """Somebody in a clone, in a shell with variables of other tools."""

    def __init__(self, root: Path, proxy: str) -> None:
        self.stack = Stack(root)
        self._variables = {**os.environ, **OF_OTHER_TOOLS, "http_proxy": proxy}

    def types(self, *command: str) -> str:
        """Run a command in the clone; return what it prints."""
        shell: Any = {"cwd": self.stack.root, "env": self._variables, "umask": 0o077, "text": True}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **shell)
        assert done.returncode == 0, f"{' '.join(command)} exited {done.returncode}:\n{done.stdout[-6000:]}"
        return done.stdout


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    started = Proxy()
    yield started
    started.close()


@pytest.fixture
def newcomer(running: Stack, proxy: Proxy, tmp_path: Path) -> Iterator[Newcomer]:
    """A newcomer with a fresh clone; the tests' own stack makes room."""
    found = Newcomer(tmp_path / "clone", proxy.address)
    running.compose("stop", "--timeout", "5")
    try:
        subprocess.run(["git", "clone", "--quiet", CHECKOUT, tmp_path / "clone"], check=True, umask=0o077)
        yield found
    finally:
        if (found.stack.root / ".env").exists() and found.stack.settings.stack_prefix == "newcomer-":
            found.stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "5", check=False)
            run("docker", "volume", "rm", "--force", "newcomer-food11", check=False)
        running.up()


@pytest.mark.nightly
@pytest.mark.minio
@pytest.mark.timeout(3600)
def test_newcomer_gets_everything_from_the_readme(newcomer: Newcomer, proxy: Proxy) -> None:
    assert re.search(r"model\s+digits", newcomer.types("make", "demo")), "the demo shows a registered model"
    newcomer.types("make", "env")
    here = {"STACK_PREFIX": "newcomer-", "FOOD11_VOLUME": "newcomer-food11", "CLUSTER_NETWORK": "10.213.79"}
    newcomer.stack.set_env(**{**ENV, **here})
    printed = newcomer.types("make", "up")
    assert "http://mlflow.localhost:18000" in printed
    assert "blog" not in run("docker", "compose", "ls", "--quiet").stdout.split(), "a variable names the project"
    assert "succeeded" in newcomer.types("make", "smoke")
    stack = newcomer.stack
    stack.write("notebook", "/tmp/newcomer/bar.py", BAR)
    stack.write("notebook", "/tmp/newcomer/widget.ipynb", notebook_of(WIDGET))
    submit = ("ray", "job", "submit", "--working-dir", "/tmp/newcomer", "--", "python", "bar.py")
    states = set(re.findall(r"(\d+)/12 \[", stack.execute("notebook", *submit).stdout))
    assert len(states) > 2, "the bar did not move"
    assert "12" in states
    printed = stack.nbconvert("/tmp/newcomer/widget.ipynb", "notebook")
    assert "application/vnd.jupyter.widget-view+json" in printed
    assert "arrived" in stack.execute("notebook", "python", "-c", ARTIFACT).stdout
    assert "blog" not in newcomer.types("make", "status")
    newcomer.types("make", "down")
    assert not stack.containers()
    assert not list(filter(INSIDE.fullmatch, proxy.hosts)), "the proxy was asked for hosts of the stack"
