"""Dev environments of people: JupyterLab in a browser, a home that stays, and the end of an unused one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from urllib.parse import SplitResult, urlsplit

import pytest
from browser import BOUND_S, Page
from failure_training import crash
from gpu_jobs import holding_gpu
from host import CHECKOUT, GRACE_S, Stack, wait_for
from lab_client import printed_by_cell
from persons import Person, submit

from mlplatform.client.jobs import ENDED, Jobs, Resources

PROGRAM = str(CHECKOUT / ".venv/bin/mlplatform")

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


def opened(person: Person) -> SplitResult:
    """Address of JupyterLab that `mlplatform dev open` prints on a laptop."""
    return urlsplit(person.types("mlplatform", "dev", "open", "--no-browser").strip())


@pytest.fixture
def address(alices: Environment) -> SplitResult:
    """Address of JupyterLab in alice's."""
    return opened(alices.person)


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


def log_in(page: Page, gateway: str, token: str) -> None:
    page.go(f"{gateway}/platform/login")
    page.wait_for_text("Log in", "the login page")
    page.evaluate(f"document.querySelector('input').value = {token.strip()!r}")
    page.click("button")
    page.wait_for_text("Dev environments", "the front page")


def shows_launcher(page: Page) -> None:
    wait_for(lambda: page.evaluate("!!document.querySelector('.jp-LauncherCard')"), "the launcher", BOUND_S)


def test_lab_opens_in_browser_with_files_of_home(page: Page, address: SplitResult) -> None:
    page.resize(1280, 900)
    page.go(address.geturl())
    shows_launcher(page)
    assert "lessons.md" in page.text()
    page.picture("dev-lab")


def test_scripts_of_lab_neither_read_nor_change_other_pages(page: Page, address: SplitResult, stack: Stack) -> None:
    gateway, mlflow = f"http://localhost:{stack.settings.ray_port}", f"http://localhost:{stack.settings.mlflow_port}"
    log_in(page, gateway, stack.secret("ray_token"))
    page.go(address.geturl())
    shows_launcher(page)
    for other in (f"{gateway}/platform/queue", f"{mlflow}/version"):
        read = f"fetch({other!r}, {{credentials: 'include'}}).then(answer => answer.status, error => error.name)"
        assert page.evaluate(read) == "TypeError", f"{other} is readable"
    options = "{method: 'POST', mode: 'no-cors', credentials: 'include'}"
    page.evaluate(f"fetch('{gateway}/platform/logout', {options}).then(() => 1)")
    assert "mlplatform-lab" not in page.evaluate("document.cookie")
    page.go(f"{gateway}/platform/")
    page.wait_for_text("Dev environments", "the front page, still logged in")


def test_kernel_has_environment_of_job(address: SplitResult, alices: Environment) -> None:
    printed = printed_by_cell(address, "import os, ray; print(os.getcwd(), os.environ['MLPLATFORM_JOB_ID'])")
    assert printed == f"/homes/{alices.person.name} {alices.job_id}\n"


def test_environment_waits_for_gpu_with_reason(people: dict[str, Person], jobs: Jobs) -> None:
    alice = people["alice"]
    with holding_gpu(jobs, 2) as holders:
        wait_for(lambda: all(jobs.get(holder).status == "RUNNING" for holder in holders), "jobs with all GPUs")
        command = [PROGRAM, "dev", "start", "--name", "waits", "--gpus", "1"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(command, env=alice.variables, **pipes) as waiting:
            assert waiting.stdout
            first = waiting.stdout.readline()
            assert "The job waits for 1 GPU" in first, first
            job_id = f"dev-{alice.name}-waits"
            assert "The job waits for 1 GPU" in alice.types("mlplatform", "why", job_id)
            jobs.stop(holders[0])
            rest = waiting.communicate(timeout=60)[0]
    assert f"mlplatform ssh {job_id}`" in rest, rest
    alice.types("mlplatform", "dev", "stop", "--name", "waits")


def test_environment_without_cpu_starts_while_all_are_taken(
    people: dict[str, Person], jobs: Jobs, started: list[str]
) -> None:
    alice = people["alice"]
    nodes = [node["cpus"] for node in alice.asks("GET", "/platform/utilisation").json()["nodes"]]
    command = ["python", "-c", "import signal; signal.pause()"]
    holders = [jobs.submit(command, None, name="holds-cpus", resources=Resources(cpus=cpus)) for cpus in nodes if cpus]
    started.extend(holders)
    wait_for(lambda: all(jobs.get(holder).status == "RUNNING" for holder in holders), "jobs that hold all CPUs")
    assert start(alice, "--name", "small", "--cpus", "0") == f"dev-{alice.name}-small"
    alice.types("mlplatform", "dev", "stop", "--name", "small")


def test_unused_environment_ends(jobs: Jobs) -> None:
    job = jobs.submit("exec python -m mlplatform.node.environment", None, env={"DEV_IDLE_SECONDS": "4"})
    ended = jobs.wait(job, timeout_s=120)
    assert ended.status == "SUCCEEDED", ended.message
    assert "nobody has used it for 4 s" in jobs.logs(job)


def test_nobody_else_opens_it(people: dict[str, Person], alices: Environment) -> None:
    printed = people["bob"].types("mlplatform", "dev", "open", "--no-browser", "--job", alices.job_id)
    assert f"only {alices.person.name} can" in printed, printed
    assert "ticket=" not in printed


@pytest.mark.usefixtures("owning_team")
def test_borrowed_environment_says_who_takes_it_and_returns(
    people: dict[str, Person], jobs: Jobs, started: list[str], page: Page
) -> None:
    alice, bob = people["alice"], people["bob"]
    borrowed = Environment(bob, start(bob, "--gpus", "1"))
    started.append(borrowed.job_id)
    borrowed.types("echo kept >mine")
    config = bob.home / "ssh_config"
    config.write_text(bob.types("mlplatform", "ssh", "--config"))
    typed = ["ssh", "-F", str(config), "-tt", f"{borrowed.job_id}.mlplatform", "echo open; sleep 600"]
    page.go(bob.types("mlplatform", "dev", "open", "--no-browser").strip())
    shows_launcher(page)
    with subprocess.Popen(typed, env=bob.variables, stdout=subprocess.PIPE, text=True) as terminal:
        assert terminal.stdout
        assert terminal.stdout.readline().strip() == "open"
        owed = submit(alice, "sleep", "1000", workers="2", worker_gpus="1", worker_cpus="0")
        started.append(owed)
        banner = "document.getElementById('mlplatform-notice')?.innerText"
        said = wait_for(lambda: page.evaluate(banner), "the banner", BOUND_S)
        assert re.search(rf"ends at [\d:]+ ?\S*; save your files\. .*{owed}", said), said
        page.picture("dev-notice")
        wait_for(lambda: jobs.get(owed).status == "RUNNING", "the job within its team's share", GRACE_S + 60)
        shown = terminal.communicate(timeout=60)[0]
    assert re.search(rf"\*\*\* This dev environment ends at [\d:]+ UTC; save your files\. .*{owed}", shown), shown
    assert f"{borrowed.job_id}" in bob.types("mlplatform", "queue")
    jobs.stop(owed)
    assert start(bob, "--gpus", "1") == borrowed.job_id
    assert [attempt.outcome for attempt in jobs.attempts(borrowed.job_id)] == ["PREEMPTED", None]
    assert borrowed.types("cat mine").strip() == "kept"


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_fifty_kills_lose_no_file_and_hold_no_gpu(
    stack: Stack, people: dict[str, Person], jobs: Jobs, request: pytest.FixtureRequest
) -> None:
    alice = people["alice"]
    request.addfinalizer(lambda: alice.types("mlplatform", "dev", "stop"))
    job_id = start(alice, "--gpus", "1")

    def node() -> str:
        return str(jobs.attempts(job_id)[-1].node)

    def kill_lab() -> None:
        assert printed_by_cell(opened(alice), "print(1)") == "1\n"
        stack.execute(node(), "pkill", "--signal", "KILL", "--full", "jupyterlab")

    def kill_shell() -> None:
        with subprocess.Popen([PROGRAM, "ssh", job_id, "--", "sleep 1000"], env=alice.variables) as shell:
            wait_for(lambda: stack.execute(node(), "pkill", "-KILL", "sshd-session", check=False).returncode == 0, "it")
            assert shell.wait(30), "the shell has not noticed"

    def writes(number: int) -> bool:
        """Return whether alice writes a file, and finds it beside all others."""
        if jobs.get(job_id).status in ENDED:
            start(alice, "--gpus", "1")
        printed = alice.types("mlplatform", "ssh", job_id, "--", f"touch ~/kill-{number}; ls ~/kill-* | wc -l")
        return printed == f"{number}\n"

    kills = [lambda: crash(stack, "gateway"), kill_lab, kill_shell, lambda: crash(stack, node())]
    for number in range(1, 51):
        kills[number % len(kills)]()
        wait_for(partial(writes, number), f"a shell after kill {number}", 300)
    print(f"{len(jobs.attempts(job_id))} attempts since the environment was started last", flush=True)
    alice.types("mlplatform", "dev", "stop")
    with holding_gpu(jobs, 2) as both:
        wait_for(lambda: all(jobs.get(job).status == "RUNNING" for job in both), "both GPUs to be free", 120)
