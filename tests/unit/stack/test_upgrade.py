"""`make upgrade` between two commits of a real checkout, with every step failing: a program stands in for Docker.

`tests/stack/test_failed_upgrade.py` does it with the real one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlplatform.errors import HostError
from mlplatform.stack import backup, rotation
from mlplatform.stack.env import filled

CHECKOUT = Path(__file__).parents[3]

MAKEFILE = """\
build:
	@sed -i 's/^MLPLATFORM_VERSION=.*/MLPLATFORM_VERSION={version}/' .env
	@echo {content} >compose/workers.cpu.generated.yaml
	@docker build {version} {content}
upgrade:
	@$(MLPLATFORM) stack upgrade --to "$(TO)"
"""

PLATFORM = ("gateway", "mlflow", "storage-init", "mlflow-migrate", "ownership")
SERVICES = {
    "postgres": "postgres:17@sha256:5eed",
    **dict.fromkeys(PLATFORM, "mlplatform-platform:$VERSION"),
    "minio": "mlplatform-minio:$VERSION",
    "ray-head": "mlplatform-ray:$VERSION",
}
FORMER_SERVICES = {**SERVICES, "retired": "mlplatform-ray:$VERSION"}

SETTINGS = {"COMPOSE_PROFILES": "tracking,ray", "DISK_NEEDED_GB": "0", "MLPLATFORM_VERSION": "1.0"}

STEPS = {
    "save": (r"^tag ", "saving settings and images"),
    "build": (r"^build ", "building and pulling images"),
    "stop": (r" stop ", "stopping all services but Postgres"),
    "dump": (r" pg_dump .*mlflow$", "saving the databases"),
    "remove": (r" down ", "migrating volumes and databases"),
    "storage": (r" --no-TTY storage-init$", "migrating volumes and databases"),
    "migrate": (r" mlplatform.gateway.migrations$", "migrating volumes and databases"),
    "start": (r" up .*--wait-timeout", "starting the new version"),
}
"""Command that fails after it took effect, and the step in the sentence that is printed."""


class Host:
    """A host with a stack of version 1.0, in a checkout where the new version is checked out."""

    def __init__(self, folder: Path, new: str = "2.0") -> None:
        self.root, self.state_file = folder / "checkout", folder / "state.json"
        self.root.mkdir()
        (folder / "bin").mkdir()
        docker = folder / "bin" / "docker"
        docker.write_text(
            f'#!/bin/sh\nexec {sys.executable} -IS {Path(__file__).with_name("simulated_docker.py")} "$@"\n'
        )
        docker.chmod(0o755)
        self.path = f"{docker.parent}{os.pathsep}{os.environ['PATH']}"
        self.git("init", "--quiet", "--initial-branch=main")
        self.old = self.commit("1.0", "old", FORMER_SERVICES)
        self.settings = filled((CHECKOUT / ".env.example").read_text(), SETTINGS)
        (self.root / ".env").write_text(self.settings)
        (self.root / "compose/workers.cpu.generated.yaml").write_text("old\n")
        images = {f"mlplatform-{name}:1.0": f"{name}-old" for name in ("platform", "ray", "minio")}
        images[SERVICES["postgres"]] = "pg"
        self.databases = {"gateway": ["job a", "job b"], "mlflow": ["run a"]}
        self.containers = {
            name: {"name": found, "image": images[found], "running": True}
            for name, image in FORMER_SERVICES.items()
            for found in [image.replace("$VERSION", "1.0")]
        }
        state = {"images": images, "containers": self.containers, "databases": self.databases}
        self.state_file.write_text(json.dumps({**state, "calls": []}))
        self.new = self.commit(new, "new", SERVICES)
        self.record({"commit": self.old, "only": ""})

    def record(self, start: dict[str, str]) -> None:
        """Record what `make up` has started."""
        (self.root / ".stack").mkdir(exist_ok=True)
        (self.root / ".stack/.gitignore").write_text("*\n")
        (self.root / ".stack/started.json").write_text(json.dumps(start))

    def git(self, *words: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", *author, *words]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, version: str, content: str, services: dict[str, str]) -> str:
        files = {
            "platform/pyproject.toml": f'[project]\nversion = "{version}"\n',
            "compose/compose.yaml": json.dumps(services),
            "Makefile": MAKEFILE.format(version=version, content=content),
            ".gitignore": ".env\n*.generated.yaml\n",
            "extra.txt": "",
        }
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", f"--message={content}")
        return self.git("rev-parse", "HEAD")

    def upgrade(self, *words: str, answer: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the verb, with a terminal if an answer is to be typed there."""
        env = {**os.environ, "PATH": self.path, "STATE": str(self.state_file), **variables}
        env["MLPLATFORM"] = f"{sys.executable} -m mlplatform"
        command = ["make", "--no-print-directory", "upgrade", *words]
        options: dict[str, Any] = {"cwd": self.root, "env": env, "capture_output": True, "text": True, "check": False}
        if not answer:
            return subprocess.run(command, **options)
        keyboard, terminal = os.openpty()
        try:
            os.write(keyboard, f"{answer}\n".encode())
            return subprocess.run(command, stdin=terminal, **options)
        finally:
            os.close(keyboard)
            os.close(terminal)

    def is_untouched(self) -> bool:
        """Return whether nothing was asked of Docker, and the former version is checked out."""
        return self.state["calls"] == [] and self.git("rev-parse", "HEAD") == self.old

    @property
    def state(self) -> dict[str, Any]:
        return json.loads(self.state_file.read_text())

    def is_upgraded(self) -> None:
        state = self.state
        assert state["databases"]["gateway"][:2] == ["job a", "job b"]
        assert {"migrated", "job of 2.0"} <= set(state["databases"]["gateway"])
        assert state["containers"].keys() == SERVICES.keys()
        images = {entry["image"] for entry in state["containers"].values()}
        assert images == {"pg", "platform-new", "minio-new", "ray-new"}
        assert self.git("rev-parse", "HEAD") == self.new
        assert "MLPLATFORM_VERSION=2.0" in (self.root / ".env").read_text()
        self.is_clean()

    def is_as_before(self) -> None:
        """The former version runs with its data, and the checkout is its own."""
        state = self.state
        assert state["containers"] == self.containers
        assert {name: rows[: len(self.databases[name])] for name, rows in state["databases"].items()} == self.databases
        assert not {"migrated", "job of 2.0"} & set(state["databases"]["gateway"] + state["databases"]["mlflow"])
        assert self.git("rev-parse", "HEAD") == self.old
        assert (self.root / ".env").read_text() == self.settings
        assert (self.root / "compose/workers.cpu.generated.yaml").read_text() == "old\n"
        self.is_clean()

    def is_clean(self) -> None:
        assert not (self.root / ".stack" / "upgrade").exists()
        assert not [name for name in self.state["images"] if name.startswith("mlplatform-former")]
        assert self.git("status", "--porcelain") == ""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_upgrade_migrates_and_starts_new_version(host: Host) -> None:
    done = host.upgrade()
    assert done.returncode == 0, done.stderr
    assert "The stack runs version 2.0" in done.stdout
    host.is_upgraded()
    again = host.upgrade()
    assert f"The stack was started from this commit ({host.new[:10]})" in again.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("step", STEPS)
def test_failed_step_leaves_former_stack(host: Host, step: str) -> None:
    pattern, doing = STEPS[step]
    done = host.upgrade(BREAK=pattern)
    assert done.returncode
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("The upgrade")]
    assert f"The upgrade to 2.0 ({host.new[:10]}) failed while {doing} (" in sentence
    assert sentence.endswith(f"of 1.0 ({host.old[:10]}).")
    host.is_as_before()


def test_lost_rows_are_noticed_and_restored(host: Host) -> None:
    done = host.upgrade(LOSES="1")
    assert "failed while comparing the data (gateway.jobs has 1 rows after the upgrade, 2 before)" in done.stderr
    host.is_as_before()


@pytest.mark.nightly
@pytest.mark.parametrize("step", STEPS)
def test_killed_upgrade_continues(host: Host, step: str) -> None:
    assert host.upgrade(KILL=STEPS[step][0]).returncode
    if step == "build":
        # It killed its `make`, which is a failure of this step, not of the program.
        host.is_as_before()
        return
    assert (host.root / ".stack/upgrade/journal.json").exists()
    done = host.upgrade()
    assert done.returncode == 0, done.stderr
    host.is_upgraded()


RETURN = ("^tag mlplatform-former", " up .*--wait postgres$", "pg_restore")


@pytest.mark.nightly
@pytest.mark.parametrize("during", RETURN)
def test_killed_return_continues(host: Host, during: str) -> None:
    assert host.upgrade(BREAK=STEPS["start"][0], KILL=during).returncode
    assert (host.root / ".stack/upgrade/journal.json").exists()
    # The former version may be checked out already, and has no such verb in reality.
    host.git("checkout", "--quiet", host.new)
    done = host.upgrade()
    assert "failed while starting the new version" in done.stderr
    host.is_as_before()


def test_return_restores_images_that_were_built_under_their_names(tmp_path: Path) -> None:
    host = Host(tmp_path, new="1.0")
    done = host.upgrade(BREAK=STEPS["migrate"][0])
    assert done.returncode
    host.is_as_before()
    assert host.state["images"]["mlplatform-ray:1.0"] == "ray-old"


def test_named_version_is_checked_out_first_and_left_after_failure(host: Host) -> None:
    host.git("tag", "v2")
    host.git("reset", "--quiet", "--hard", host.old)
    done = host.upgrade("TO=v2", answer="y", BREAK=STEPS["migrate"][0])
    assert "failed while migrating" in done.stderr
    host.is_as_before()
    assert host.git("symbolic-ref", "--short", "HEAD") == "main"
    done = host.upgrade("TO=v2", answer="y")
    assert done.returncode == 0, done.stderr
    assert f"v2 is the commit {host.new}" in done.stdout
    host.is_upgraded()


@pytest.mark.parametrize("name", ["v2", "release", "short"])
def test_code_of_unconfirmed_name_does_not_run(host: Host, name: str) -> None:
    host.git("tag", "v2")
    host.git("branch", "release")
    host.git("reset", "--quiet", "--hard", host.old)
    to = host.new[:12] if name == "short" else name
    for answer in ("", "n"):
        done = host.upgrade(f"TO={to}", answer=answer)
        assert done.returncode
        assert f"repeat with TO={host.new}" in done.stderr
        assert host.is_untouched()


def test_full_commit_needs_no_answer(host: Host) -> None:
    host.git("reset", "--quiet", "--hard", host.old)
    done = host.upgrade(f"TO={host.new}")
    assert done.returncode == 0, done.stderr
    host.is_upgraded()


def test_only_signed_tag_is_accepted_where_signers_are_configured(host: Host, tmp_path: Path) -> None:
    for who in ("trusted", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / who], check=True)
        sign = ("-c", "gpg.format=ssh", "-c", f"user.signingkey={tmp_path / who}")
        host.git(*sign, "tag", "--sign", "--message=2.0", f"by-{who}")
    host.git("tag", "unsigned")
    host.git("reset", "--quiet", "--hard", host.old)
    # A branch of that name must not be checked out in the tag's place.
    host.git("branch", "by-trusted", host.old)
    signers = tmp_path / "signers"
    signers.write_text(f"a@example.org {(tmp_path / 'trusted.pub').read_text()}")
    host.git("config", "gpg.ssh.allowedSignersFile", str(signers))
    for name in ("unsigned", "by-stranger"):
        done = host.upgrade(f"TO={name}", answer="y")
        assert f"The tag {name} has no valid signature (" in done.stderr
        assert host.is_untouched()
    done = host.upgrade("TO=by-trusted", answer="y")
    assert done.returncode == 0, done.stderr
    host.is_upgraded()


def test_upgrade_without_known_origin_changes_nothing(host: Host) -> None:
    for record in ({}, {"commit": "0" * 40}):
        host.record(record)
        assert "as of a stack of version 0.3 or earlier, which cannot be upgraded" in host.upgrade().stderr
    wrong = host.commit("3.0", "newer", SERVICES)
    host.record({"commit": host.new})
    assert "Version 2.0" in host.upgrade().stderr
    assert "TO=none is not a branch" in host.upgrade("TO=none").stderr
    assert host.git("rev-parse", "HEAD") == wrong
    assert not [call for call in host.state["calls"] if not call.startswith(("ps ", "inspect "))]


def test_own_change_that_would_block_a_return_is_named(host: Host) -> None:
    (host.root / "extra.txt").write_text("torchmetrics\n")
    assert host.upgrade(BREAK=STEPS["start"][0]).returncode
    assert (host.root / "extra.txt").read_text() == "torchmetrics\n", "a change of the operator's was lost"
    host.git("checkout", "--quiet", host.new)
    (host.root / "Makefile").write_text((host.root / "Makefile").read_text() + "# mine\n")
    assert "Makefile: changed here and between the versions" in host.upgrade().stderr


def test_interrupted_upgrade_blocks_a_start(host: Host) -> None:
    (host.root / ".stack/upgrade").mkdir(parents=True)
    (host.root / ".stack/upgrade/journal.json").touch()
    for words, reason in ((["up"], "continues it"), (["upgrade", "--to", "HEAD"], "without TO= first")):
        command = [sys.executable, "-m", "mlplatform", "stack", *words]
        done = subprocess.run(command, cwd=host.root, capture_output=True, text=True, check=False)
        assert done.returncode
        assert reason in done.stderr


def test_interrupted_upgrade_blocks_rotation_and_restore(host: Host) -> None:
    (host.root / ".stack/upgrade").mkdir(parents=True)
    (host.root / ".stack/upgrade/journal.json").touch()
    with pytest.raises(HostError, match="run `make upgrade`, which continues it"):
        list(rotation.rotate(host.root))
    with pytest.raises(HostError, match="run `make upgrade`, which continues it"):
        list(backup.restore(host.root, str(host.root)))


def test_interrupted_rotation_blocks_upgrade_and_restore(host: Host) -> None:
    (host.root / "secrets/.rotation").mkdir(parents=True)
    (host.root / "secrets/.rotation/plan.json").write_text('{"groups": ["ray"], "services": []}')
    assert "`make rotate` completes it" in host.upgrade().stderr
    with pytest.raises(HostError, match="`make rotate` completes it"):
        list(backup.restore(host.root, str(host.root)))
    assert host.state["calls"] == []


def test_stopped_stack_is_not_upgraded(host: Host) -> None:
    state = host.state
    state["containers"]["postgres"]["running"] = False
    host.state_file.write_text(json.dumps(state))
    assert "The stack does not run" in host.upgrade().stderr


def test_copied_folder_without_git_is_not_upgraded(host: Host) -> None:
    shutil.rmtree(host.root / ".git")
    assert "is not a git checkout" in host.upgrade().stderr
