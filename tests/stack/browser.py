"""A headless browser, driven through its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from host import run, wait_for
from websockets.sync.client import connect

BOUND_S = 60

PICTURES = Path(os.environ["PICTURES"]) if "PICTURES" in os.environ else None
"""Folder for screenshots that people look at; none by default."""


class NavigationError(AssertionError):
    """The page changed to another before it answered."""


class Page:
    """A page of the browser, which keeps its files in a new folder.

    `trusted` is the SHA-256 digest, in base64, of the public key of a certificate that it accepts; empty for none.
    """

    def __init__(self, folder: Path, trusted: str) -> None:
        folder.mkdir()
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options = ["--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-first-run", "about:blank"]
        if trusted:
            options.insert(0, f"--ignore-certificate-errors-spki-list={trusted}")
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
        """The text that the page shows; empty while it navigates."""
        try:
            return str(self.evaluate("document.body ? document.body.innerText : ''"))
        except NavigationError:
            return ""

    def status(self, path: str, method: str = "GET", token: str = "") -> int:
        """Status of a request that the page itself makes."""
        options = {"method": method, "headers": {"Authorization": f"Bearer {token}"} if token else {}}
        return int(self.evaluate(f"fetch({json.dumps(path)}, {json.dumps(options)}).then(answer => answer.status)"))

    def wait_for_text(self, text: str, what: str) -> None:
        """Wait until the page shows a text."""
        wait_for(lambda: text in self.text(), f"{what}; the page shows: {self.text()[:2000]}", BOUND_S)

    def click(self, selector: str) -> None:
        """Click the first element that a CSS selector matches."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, element: str) -> None:
        """Press the mouse on an element, given as a JavaScript expression, as menus need that ignore `click()`."""
        # Menus and dialogs move while they open, so that the mouse would miss them.
        middle_at_rest = f"""new Promise(done => {{
            const element = {element};
            if (!element) return done(null);
            element.scrollIntoView({{block: 'center'}});
            const middle = () => {{
                const box = element.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }};
            const before = middle();
            setTimeout(() => done(String(before) === String(middle()) ? before : null), 100);
        }})"""
        place = wait_for(lambda: self.evaluate(middle_at_rest), f"{element} on the page", BOUND_S)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            mouse = {"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1}
            self._call("Input.dispatchMouseEvent", **mouse)

    def press_text(self, text: str, tag: str = "*") -> None:
        """Press the mouse on the innermost element that shows exactly a text, the last one if there are several."""
        path = f"(//{tag}[normalize-space(.)={json.dumps(text)}])[last()]"
        self.press(f"document.evaluate({json.dumps(path)}, document, null, 9).singleNodeValue")

    def type(self, text: str, into: str | None = None) -> None:
        """Type a text, without keys such as Enter, into the element with the focus, which `into` (CSS) gives it."""
        if into:
            self.evaluate(f"document.querySelector({json.dumps(into)}).focus()")
        self._call("Input.insertText", text=text)

    def authenticate(self, user: str, password: str) -> None:
        """Send an account with each request, as after the browser's own dialog."""
        account = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._call("Network.enable")
        self._call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {account}"})

    def press_enter(self, shift: bool = False) -> None:
        """Press Enter in the element that has the focus."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 8 if shift else 0}
        self._call("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        self._call("Input.dispatchKeyEvent", type="keyUp", **key)

    def resize(self, width: int, height: int) -> None:
        """Give the page the size of a device, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def picture(self, name: str) -> None:
        """Write a picture of the whole page, as PNG, if the environment names a folder for PICTURES."""
        if PICTURES:
            picture = self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            (PICTURES / f"{name}.png").write_bytes(base64.b64decode(picture))

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
        if "navigated" in message.get("error", {}).get("message", ""):
            raise NavigationError(message)
        assert "error" not in message, message
        return dict(message["result"])


@contextmanager
def opened(folder: Path, trusted: str = "") -> Iterator[Page]:
    """A page of a browser that nobody has used before; installs Debian's Chromium, if there is none."""
    if not shutil.which("chromium"):
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium")
    page = Page(folder, trusted)
    yield page
    page.close()
