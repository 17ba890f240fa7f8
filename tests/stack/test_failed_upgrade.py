"""`make upgrade` on the real stack: the data is kept, whether it is killed or one of its steps fails.

After a failure, the former version runs as before; a killed upgrade is completed by the same command.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from figures import count
from host import Stack, Trained, run, wait_for
from killed import KILLS, Training, killed_and_repeated

from mlplatform.client.jobs import Jobs

STEPS = {
    "build": (" build ", ""),
    "dump": (" pg_dump .* mlflow$", ""),
    "start": (" up .*--wait-timeout", "UPDATE jobs SET message = 'of the new version'"),
    "check": (" up .*--wait-timeout", "TRUNCATE jobs CASCADE"),
}
"""Command after which the step fails, and what the new version has done to the gateway's database by then."""

# Runs a command that matches, then changes the database, and fails unless a later step has to notice the change.
DOCKER = """\
#!/bin/sh
[ -e {mark} ] && printf '%s' "$*" | grep -Eq -- '{pattern}' || exec {docker} "$@"
rm {mark}
{docker} "$@" || exit
[ -z "{sql}" ] || {docker} exec {postgres} psql --username=postgres --dbname=gateway --command="{sql}" >&2 || exit
[ {step} = check ] || {{ echo "made to fail by the test" >&2; exit 1; }}
"""

CHANGED = "compose/gateway.yaml"

SURELY = 40
"""Seconds that every upgrade takes, because Ray's nodes drain."""


class Versions:
    """Two commits of the stack's checkout; the second gives the gateway's container a label."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.git("init", "--quiet")
        self.old = self._commit("old")
        # Records the commit, which the checkout under test lacked until now.
        stack.up()
        text = (stack.root / CHANGED).read_text()
        label = "  gateway:\n    labels: {upgraded: 'yes'}\n"
        (stack.root / CHANGED).write_text(text.replace("  gateway:\n", label, 1))
        self.new = self._commit("new")

    def git(self, *words: str) -> str:
        author = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        return run("git", *author, *words, cwd=self.stack.root).stdout.strip()

    @property
    def new_runs(self) -> bool:
        return "upgraded" in self.stack.by_service()["gateway"]["Config"]["Labels"]

    def check_out_other(self) -> tuple[str, str]:
        """Check out the version that does not run; return its commit, and that of the one that runs."""
        to, running = (self.old, self.new) if self.new_runs else (self.new, self.old)
        self.git("checkout", "--quiet", to)
        return to, running

    def _commit(self, message: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", f"--message={message}")
        return self.git("rev-parse", "HEAD")


@pytest.fixture(scope="module")
def versions(running: Stack) -> Iterator[Versions]:
    """The stack's files as a git checkout with two versions."""
    if running.unhealthy():
        running.up()
    prepared = Versions(running)
    yield prepared
    prepared.git("checkout", "--quiet", "--force", prepared.old)
    shutil.rmtree(running.root / ".git")
    shutil.rmtree(running.root / ".stack", ignore_errors=True)
    running.up()


def containers(stack: Stack) -> dict[str, tuple[str, str]]:
    """Image and configuration of each container."""
    label = "com.docker.compose.config-hash"
    return {name: (entry["Image"], entry["Config"]["Labels"][label]) for name, entry in stack.by_service().items()}


def data(stack: Stack, job: Trained) -> dict[str, object]:
    """The main job's run, model and log, and the other jobs that have ended, as users see them."""
    jobs = stack.ray.get("/api/jobs/").raise_for_status().json()
    (found,) = stack.runs_of(job.id)
    alias = stack.mlflow.get("/registered-models/alias", params={"name": "digits", "alias": "champion"})
    return {
        "jobs": {entry["submission_id"]: entry["message"] for entry in jobs if entry["status"] == "SUCCEEDED"},
        "run": {key: sorted(map(str, values)) for key, values in found["data"].items()},
        "model": alias.raise_for_status().json(),
        "log": stack.ray.get(f"/api/jobs/{job.id}/logs").raise_for_status().json(),
    }


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.nightly
def test_failed_upgrade_leaves_former_stack_with_its_data(
    stack: Stack, jobs: Jobs, trained: Trained, versions: Versions, tmp_path: Path, step: str
) -> None:
    pattern, sql = STEPS[step]
    mark, docker = tmp_path / "mark", tmp_path / "docker"
    mark.touch()
    facts = {"docker": shutil.which("docker"), "postgres": stack.container("postgres")}
    docker.write_text(DOCKER.format(mark=mark, pattern=pattern, sql=sql, step=step, **facts))
    docker.chmod(0o755)
    before, settings = containers(stack), (stack.root / ".env").read_text()
    kept, (_, running) = data(stack, trained), versions.check_out_other()
    job = jobs.submit("sleep 3000", "jobs", name="open")
    wait_for(lambda: jobs.get(job).status == "RUNNING", "the open job", 120)

    begun = time.monotonic()
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run("make", "upgrade", cwd=stack.root, env={**os.environ, "PATH": path}, check=False)
    print(f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{time.monotonic() - begun:.0f} s", flush=True)
    count("upgrades tried")

    wait_for(stack.whole, "the stack", 240)
    assert data(stack, trained) == kept
    assert (stack.root / ".env").read_text() == settings
    assert done.returncode
    assert not mark.exists(), "the step was left out"
    assert f"the stack runs {stack.settings.mlplatform_version} ({running[:10]}) again" in done.stderr
    assert versions.git("rev-parse", "HEAD") == running
    assert containers(stack) == before
    nothing_is_left(stack)
    # The open job was not touched, or continues as its next attempt if the services were stopped.
    attempts = 1 if step == "build" else 2
    attempt = f"attempt {attempts} of the open job"
    wait_for(lambda: len(jobs.attempts(job)) == attempts and jobs.get(job).status == "RUNNING", attempt, 240)
    jobs.stop(job)
    assert jobs.wait(job, timeout_s=60).status == "STOPPED"


def nothing_is_left(stack: Stack) -> None:
    assert not (stack.root / ".stack" / "upgrade").exists()
    former = f"reference=mlplatform-former:{stack.settings.stack_prefix}*"
    assert run("docker", "image", "ls", "--quiet", "--filter", former).stdout == ""


@pytest.mark.parametrize("kills", KILLS)
def test_killed_upgrades_are_completed_under_training(
    stack: Stack, jobs: Jobs, trained: Trained, versions: Versions, kills: Sequence[int]
) -> None:
    kept, training, settings = data(stack, trained), Training(stack, jobs), (stack.root / ".env").read_text()
    rng, killed = random.Random(42), 0  # noqa: S311 reproducible
    for in_a_row in kills:
        to, running = versions.check_out_other()

        def either_code(to: str = to, running: str = running) -> None:
            if (stack.root / ".stack" / "upgrade" / "facts.json").exists():
                versions.git("checkout", "--quiet", rng.choice((running, to)))
                with pytest.raises(AssertionError, match="`make upgrade` completes it"):
                    stack.up()

        killed += killed_and_repeated(stack, rng, SURELY, "upgrade", either_code, in_a_row)
        training.continues()
        assert versions.git("rev-parse", "HEAD") == to
        assert versions.new_runs == (to == versions.new)
        assert data(stack, trained) == kept
        assert (stack.root / ".env").read_text() == settings
        nothing_is_left(stack)
    assert killed > sum(kills) / 2
    training.ends()
