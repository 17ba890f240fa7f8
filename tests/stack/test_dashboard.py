"""Ray's dashboard in a browser, through the gateway: users log in and see jobs but cannot change them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from host import Stack, Trained, run, wait_for
from websockets.sync.client import connect

BOUND_S = 60


class Page:
    """A page of a headless browser, driven through its DevTools protocol."""

    def __init__(self, folder: Path) -> None:
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options = ["--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-first-run", "about:blank"]
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        port_file = folder / "DevToolsActivePort"
        wait_for(lambda: port_file.exists() and len(port_file.read_text().splitlines()) == 2, "the browser", BOUND_S)
        port, path = port_file.read_text().splitlines()
        self._open = ExitStack()
        self._socket = self._open.enter_context(connect(f"ws://127.0.0.1:{port}{path}", proxy=None, max_size=None))
        self._calls = 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def go(self, address: str) -> None:
        self._call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self) -> str:
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def status(self, path: str, method: str = "GET", token: str = "") -> int:
        """Status of a request that the page itself makes."""
        options = {"method": method, "headers": {"Authorization": f"Bearer {token}"} if token else {}}
        return int(self.evaluate(f"fetch({json.dumps(path)}, {json.dumps(options)}).then(answer => answer.status)"))

    def close(self) -> None:
        self._open.close()
        self._process.terminate()
        self._process.wait(BOUND_S)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._calls += 1
        session = {"sessionId": self._session} if self._session else {}
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": params, **session}))
        while (message := json.loads(self._socket.recv(BOUND_S))).get("id") != self._calls:
            pass  # an event
        assert "error" not in message, message
        return dict(message["result"])


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    if not shutil.which("chromium"):
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium")
    opened = Page(tmp_path)
    yield opened
    opened.close()


def test_dashboard_login_shows_jobs_read_only(stack: Stack, trained: Trained, page: Page) -> None:
    address = f"http://127.0.0.1:{stack.settings.ray_port}"
    page.go(f"{address}/#/jobs")
    wait_for(lambda: "oken" in page.text(), "the dashboard's prompt for the token", BOUND_S)
    assert page.status("/api/jobs/") == 401
    assert page.status("/api/authenticate", "POST", "wrong") == 403
    # The dashboard's own dialog sends the token in the same way; scripts cannot read the response's cookie.
    assert page.status("/api/authenticate", "POST", stack.secret("ray_token")) == 200
    assert page.status("/api/jobs/") == 200
    assert page.evaluate("document.cookie") == ""

    known = [job["submission_id"] for job in stack.ray.get("/api/jobs/").json() if job["submission_id"]]
    assert trained.id in known
    page.evaluate("location.reload()")
    wait_for(lambda: any(name in page.text() for name in known), "the list of jobs, or its first page", BOUND_S)
    assert not re.search(r"--\d+-[0-9a-f]{6}", page.text()), "an attempt is listed under its Ray submission id"
    page.go(f"{address}/#/jobs/{trained.id}")
    wait_for(lambda: "SUCCEEDED" in page.text(), "the page of the job", BOUND_S)
    wait_for(lambda: f"Running entrypoint for job {trained.id}" in page.text(), "the job's log on its page", BOUND_S)

    assert page.status(f"/api/jobs/{trained.id}", "DELETE") == 405
    assert stack.ray.get(f"/api/jobs/{trained.id}").status_code == 200
