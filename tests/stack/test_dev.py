"""Dev environments of people: JupyterLab on a laptop, a home that stays, and the end of an unused one."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import httpx
import pytest
from browser import BOUND_S, Page
from host import CHECKOUT, GRACE_S, Stack, wait_for
from persons import Person, submit
from websockets.sync.client import connect

from mlplatform.client.jobs import Jobs

PACKAGE = """
mkdir /tmp/own && cd /tmp/own
echo 'found = 1' >own.py
cat >pyproject.toml <<'END'
[project]
name = "own"
version = "1"
[build-system]
requires = []
build-backend = "hatchling.build"
[tool.hatch.build.targets.wheel]
only-include = ["own.py"]
END
pip install --quiet --no-index --no-build-isolation . && rm -r /tmp/own
"""
"""Commands that install a package of one's own."""


@dataclass(frozen=True)
class Environment:
    """A person's dev environment."""

    person: Person
    job_id: str

    def types(self, command: str) -> str:
        """Run a command in it."""
        return self.person.types("mlplatform", "ssh", self.job_id, "--", command)


@pytest.fixture
def alices(people: dict[str, Person]) -> Iterator[Environment]:
    """Alice's, which she has started."""
    alice = people["alice"]
    yield Environment(alice, start(alice))
    alice.types("mlplatform", "dev", "stop")


def start(person: Person, *options: str) -> str:
    """Start an environment; return the id of its job."""
    printed = person.types("mlplatform", "dev", "start", *options)
    found = re.search(r"mlplatform ssh (dev-\S+)`", printed)
    assert found, printed
    return found[1]


@pytest.fixture
def address(alices: Environment) -> Iterator[SplitResult]:
    """Address of the page that `mlplatform dev open` has printed on alice's laptop."""
    command = [str(CHECKOUT / ".venv/bin/mlplatform"), "dev", "open", "--no-browser"]
    opened = subprocess.Popen(
        command, env=alices.person.variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert opened.stdout
        yield urlsplit(opened.stdout.readline().strip())
    finally:
        opened.terminate()
        opened.wait()


def test_home_and_its_packages_outlive_environment(alices: Environment) -> None:
    alice, home = alices.person, f"/homes/{alices.person.name}"
    assert alices.types("pwd").strip() == home
    assert {"digits.py", "lessons.md", "notebooks"} <= set(alices.types("ls").split())
    alices.types("rm digits.py; echo kept >~/mine")
    # As in a terminal of JupyterLab, which is a login shell.
    assert alices.types("bash --login -c 'command -v pip'").strip() == f"{home}/.venv/bin/pip"
    alices.types(PACKAGE)
    assert "is stopping" in alice.types("mlplatform", "dev", "stop")
    wait_for(lambda: "STOPPED" in alice.types("mlplatform", "dev", "list"), "the end of the environment")
    assert start(alice) == alices.job_id, "editors know another host"
    seen = alices.types("cat mine; ls digits.py; python -c 'import own, torch; print(own.found, torch.__version__)'")
    assert "kept\n" in seen
    assert "cannot access 'digits.py'" in seen, "a lesson that was removed is back"
    assert re.search(r"^1 \d", seen, re.M), seen


def test_lab_opens_in_browser_with_files_of_home(page: Page, address: SplitResult) -> None:
    page.resize(1280, 900)
    page.go(address.geturl())
    wait_for(lambda: page.evaluate("!!document.querySelector('.jp-LauncherCard')"), "the launcher", BOUND_S)
    assert "lessons.md" in page.text()
    assert str(address.hostname).endswith(".localhost"), "its scripts share cookies with other pages"
    page.picture("dev-lab")


def test_kernel_has_environment_of_job(address: SplitResult, alices: Environment) -> None:
    # Browsers know that names below `localhost` are this machine's; resolvers do not.
    here, token = f"127.0.0.1:{address.port}", {"Authorization": f"token {address.query.removeprefix('token=')}"}
    with httpx.Client(base_url=f"http://{here}/api", timeout=60) as stranger:
        assert stranger.get("/contents").status_code == 403
    header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "session": uuid.uuid4().hex}
    code = "import os, ray; print(os.getcwd(), os.environ['MLPLATFORM_JOB_ID'])"
    request = {"header": {**header, "version": "5.3"}, "parent_header": {}, "metadata": {}, "channel": "shell"}
    with httpx.Client(base_url=f"http://{here}/api", headers=token, timeout=60) as lab:
        kernel = lab.post("/kernels", json={"name": "python3"}).raise_for_status().json()["id"]
        with connect(f"ws://{here}/api/kernels/{kernel}/channels", additional_headers=token, proxy=None) as socket:
            socket.send(json.dumps({**request, "content": {"code": code, "silent": False}}))
            while (message := json.loads(socket.recv(60)))["msg_type"] != "stream":
                assert message["msg_type"] != "error", message
        lab.delete(f"/kernels/{kernel}").raise_for_status()
    assert message["content"]["text"] == f"/homes/{alices.person.name} {alices.job_id}\n"


def test_unused_environment_ends(jobs: Jobs) -> None:
    job = jobs.submit("exec python -m mlplatform.node.environment", None, env={"DEV_IDLE_SECONDS": "4"})
    ended = jobs.wait(job, timeout_s=120)
    assert ended.status == "SUCCEEDED", ended.message
    assert "nobody has used it for 4 s" in jobs.logs(job)


def test_nobody_else_opens_it(people: dict[str, Person], alices: Environment, stack: Stack) -> None:
    printed = people["bob"].types("mlplatform", "dev", "open", "--no-browser", "--job", alices.job_id)
    assert f"only {alices.person.name} can" in printed, printed
    assert "token=" not in printed


@pytest.mark.usefixtures("owning_team")
def test_borrowed_environment_says_who_takes_it_and_returns(
    people: dict[str, Person], jobs: Jobs, started: list[str]
) -> None:
    alice, bob = people["alice"], people["bob"]
    borrowed = Environment(bob, start(bob, "--gpus", "1"))
    started.append(borrowed.job_id)
    borrowed.types("echo kept >mine")
    config = bob.home / "ssh_config"
    config.write_text(bob.types("mlplatform", "ssh", "--config"))
    typed = ["ssh", "-F", str(config), "-tt", f"{borrowed.job_id}.mlplatform", "echo open; sleep 600"]
    with subprocess.Popen(typed, env=bob.variables, stdout=subprocess.PIPE, text=True) as terminal:
        assert terminal.stdout
        assert terminal.stdout.readline().strip() == "open"
        owed = submit(alice, "sleep", "1000", workers="2", worker_gpus="1", worker_cpus="0")
        started.append(owed)
        wait_for(lambda: jobs.get(owed).status == "RUNNING", "the job within its team's share", GRACE_S + 60)
        shown = terminal.communicate(timeout=60)[0]
    assert re.search(rf"\*\*\* This dev environment ends at [\d:]+ UTC; save your files\. .*{owed}", shown), shown
    assert f"{borrowed.job_id}" in bob.types("mlplatform", "queue")
    jobs.stop(owed)
    assert start(bob, "--gpus", "1") == borrowed.job_id
    assert [attempt.outcome for attempt in jobs.attempts(borrowed.job_id)] == ["PREEMPTED", None]
    assert borrowed.types("cat mine").strip() == "kept"
