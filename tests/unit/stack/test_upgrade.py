"""Folder of an upgrade, with a real git.

`tests/stack/test_failed_upgrade.py` has the whole command on a running stack.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlplatform.errors import HostError
from mlplatform_stack import checkout, former, unfinished, upgrade
from mlplatform_stack.former import Former

FACTS = {"from": "a" * 40, "to": "b" * 40, "from_version": "1.0", "to_version": "2.0", "only": ""}


class Checkout:
    """A checkout of version 1.0, from which the stack was started, with a commit of version 2.0."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.old, self.new = self.commit("1.0"), self.commit("2.0")
        self.git("reset", "--quiet", "--hard", self.old)
        checkout.record_start(root, None)

    def git(self, *words: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", *author, *words]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, version: str) -> str:
        for name, text in (("platform/pyproject.toml", f'[project]\nversion = "{version}"\n'), ("extra.txt", "")):
            (self.root / name).parent.mkdir(exist_ok=True)
            (self.root / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", f"--message={version}")
        return self.git("rev-parse", "HEAD")

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def versions(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def prepared(root: Path, **changed: str) -> Former:
    """The folder of an upgrade that was killed, without images and settings."""
    folder = root / unfinished.UPGRADE
    folder.mkdir(parents=True)
    (folder / unfinished.FACTS).write_text(json.dumps({**FACTS, **changed}))
    (folder / "images.json").write_text("{}")
    return Former(root, folder)


def test_upgrade_needs_another_version_and_a_recorded_start(versions: Checkout) -> None:
    assert not upgrade.prepare(versions.root)
    (versions.root / ".stack" / "started.json").unlink()
    with pytest.raises(HostError, match="no commit to return to"):
        upgrade.prepare(versions.root)
    shutil.rmtree(versions.root / ".git")
    with pytest.raises(HostError, match="is not a git checkout"):
        upgrade.prepare(versions.root)
    assert not unfinished.has(versions.root, "upgrade")


def test_own_change_that_would_block_a_return_is_found(versions: Checkout) -> None:
    (versions.root / "extra.txt").write_text("torchmetrics\n")
    assert checkout.obstacles(versions.root, versions.old, versions.new) == []
    (versions.root / "platform/pyproject.toml").write_text("mine")
    assert checkout.obstacles(versions.root, versions.old, versions.new) == ["platform/pyproject.toml"]


def test_interrupted_upgrade_is_continued_as_it_was_begun(versions: Checkout) -> None:
    saved = prepared(versions.root)
    upgrade.prepare(versions.root)
    assert saved.facts == FACTS
    program = saved.program / "mlplatform"
    program.mkdir(parents=True)
    (program / "__init__.py").touch()
    (program / "__main__.py").write_text("import sys\nprint('the saved program', *sys.argv[1:])\n")
    command = [sys.executable, "-m", "mlplatform", "stack", "upgrade"]
    done = subprocess.run(command, cwd=versions.root, env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout == f"the saved program stack perform-upgrade --root {versions.root}\n"
    assert versions.head == versions.old


def test_half_removed_upgrade_is_none(tmp_path: Path) -> None:
    saved = prepared(tmp_path)
    (tmp_path / unfinished.UPGRADE / unfinished.FACTS).unlink()
    assert not unfinished.has(tmp_path, "upgrade")
    with pytest.raises(HostError, match="run `make upgrade`"):
        upgrade.perform(tmp_path, print)
    assert not saved.failure


def test_settings_are_restored_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, folder = tmp_path / "checkout", tmp_path / "saved"
    generated = root / "compose" / "workers.cpu.generated.yaml"
    generated.parent.mkdir(parents=True)
    # `make env` of the new version has written its number already.
    (root / ".env").write_text("# mine\nMLPLATFORM_VERSION=2.0\nWORKER_CPUS=7\n")
    generated.write_text("old\n")
    # No image is in use; `docker image rm` and the others have nothing to do.
    monkeypatch.setattr(former, "output", lambda *command, **options: "")
    monkeypatch.setattr(former, "containers", lambda prefix: [])
    folder.mkdir()
    Former(root, folder).save(FACTS)
    (root / ".env").write_text("MLPLATFORM_VERSION=2.0\nRENAMED=7\n")
    generated.write_text("new\n")
    (root / "compose" / "notebooks.generated.yaml").write_text("only the new version has it\n")
    of_service = root / "docker" / "prometheus" / "services.generated.yml"
    of_service.parent.mkdir(parents=True)
    of_service.write_text("only the new version has it\n")
    Former(root, folder).restore_settings()
    assert (root / ".env").read_text() == "# mine\nMLPLATFORM_VERSION=1.0\nWORKER_CPUS=7\n"
    assert generated.read_text() == "old\n"
    assert list(generated.parent.iterdir()) == [generated]
    assert not of_service.exists()
    assert (folder / "program" / "mlplatform_stack" / "upgrade.py").is_file()
    [points] = (folder / "program").glob("mlplatform_stack-*.dist-info/entry_points.txt")
    assert "mlplatform.commands" in points.read_text()


def test_reason_is_first_line_and_never_empty() -> None:
    reasons = [HostError("no space:\nmore"), HostError(""), KeyboardInterrupt()]
    assert [upgrade._reason(error) for error in reasons] == ["no space", "HostError('')", "interrupted"]


class Steps:
    """Steps forwards and backwards, each of which raises the errors that are left in its list."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.errors: dict[str, list[BaseException]] = {"forwards": [], "backwards": []}
        for name in self.errors:
            patch.setattr(upgrade, f"_{name}", self._step(name))

    def _step(self, name: str):  # type: ignore[no-untyped-def]
        def step(*_: object) -> None:
            self.calls.append(name)
            if self.errors[name]:
                raise self.errors[name].pop()

        return step


class Killed(BaseException):
    """The end of the process."""


def test_killed_upgrade_continues_forwards_from_any_checkout(
    versions: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, saved = Steps(monkeypatch), prepared(versions.root, **{"from": versions.old, "to": versions.new})
    steps.errors["forwards"].append(Killed())
    with pytest.raises(Killed):
        upgrade.perform(versions.root, print)
    versions.git("checkout", "--quiet", versions.old)
    assert upgrade.perform(versions.root, print) == (
        f"The stack runs version 2.0 ({versions.new[:10]}), after 1.0 ({versions.old[:10]})."
    )
    assert (steps.calls, versions.head) == (["forwards", "forwards"], versions.new)
    assert not saved.program.parent.exists()


def test_failed_upgrade_returns_until_that_is_done(versions: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, saved = Steps(monkeypatch), prepared(versions.root, **{"from": versions.old, "to": versions.new})
    steps.errors["forwards"].append(HostError("it broke.\nmore"))
    steps.errors["backwards"].append(Killed())
    with pytest.raises(Killed):
        upgrade.perform(versions.root, print)
    versions.git("checkout", "--quiet", versions.old)
    with pytest.raises(HostError, match=r"2\.0 .* failed \(it broke\): the stack runs 1\.0 .* again"):
        upgrade.perform(versions.root, print)
    assert (steps.calls, versions.head) == (["forwards", "backwards", "backwards"], versions.old)
    assert not saved.program.parent.exists()
