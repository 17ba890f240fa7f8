"""Folder of an upgrade, and the version that `make upgrade TO=` checks out, with a real git.

`tests/stack/test_failed_upgrade.py` has the whole command on a running stack.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlplatform.errors import HostError
from mlplatform.stack import backup, checkout, former, rotation, unfinished, upgrade
from mlplatform.stack.former import Former

FACTS = {"from": "a" * 40, "to": "b" * 40, "from_version": "1.0", "to_version": "2.0", "only": ""}

MAKEFILE = """\
upgrade:
	@git rev-parse HEAD >../ran
	@exit $${STATUS:-0}
"""


class Checkout:
    """A checkout of version 1.0, from which the stack was started; version 2.0 has the tag `v2`."""

    def __init__(self, root: Path) -> None:
        self.root, self.asked = root, list[str]()
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.old, self.new = self.commit("1.0"), self.commit("2.0")
        self.git("tag", "v2")
        self.git("branch", "release")
        self.git("reset", "--quiet", "--hard", self.old)
        checkout.record_start(root, None)

    def git(self, *words: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", *author, *words]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, version: str) -> str:
        for name, text in (
            ("platform/pyproject.toml", f'[project]\nversion = "{version}"\n'),
            ("Makefile", MAKEFILE),
            ("extra.txt", ""),
        ):
            (self.root / name).parent.mkdir(exist_ok=True)
            (self.root / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", f"--message={version}")
        return self.git("rev-parse", "HEAD")

    def upgrade(self, to: str, *, answer: bool = False) -> int:
        def confirm(question: str) -> bool:
            self.asked.append(question)
            return answer

        return upgrade.check_out_and_upgrade(self.root, to, confirm)

    @property
    def ran(self) -> str:
        """Commit whose `make upgrade` ran; empty if none did."""
        file = self.root.parent / "ran"
        return file.read_text().strip() if file.exists() else ""

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def versions(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def prepared(root: Path) -> Former:
    """The folder of an upgrade that was killed, without images and settings."""
    folder = root / unfinished.UPGRADE
    folder.mkdir(parents=True)
    (folder / unfinished.FACTS).write_text(json.dumps(FACTS))
    (folder / "images.json").write_text("{}")
    return Former(root, folder)


def test_named_version_is_shown_confirmed_and_run(versions: Checkout) -> None:
    assert versions.upgrade("v2", answer=True) == 0
    assert versions.asked == [f"v2 is the commit {versions.new}. Run its code as this user"]
    assert versions.ran == versions.head == versions.new


def test_full_commit_needs_no_answer(versions: Checkout) -> None:
    assert versions.upgrade(versions.new) == 0
    assert (versions.asked, versions.ran) == ([], versions.new)


@pytest.mark.parametrize("name", ["v2", "release", "short"])
def test_code_of_unconfirmed_name_does_not_run(versions: Checkout, name: str) -> None:
    with pytest.raises(HostError, match=f"repeat with TO={versions.new}"):
        versions.upgrade(versions.new[:12] if name == "short" else name)
    assert (versions.ran, versions.head) == ("", versions.old)


def test_unknown_version_changes_nothing(versions: Checkout) -> None:
    with pytest.raises(HostError, match="TO=none is not a branch, tag or commit"):
        versions.upgrade("none", answer=True)
    assert (versions.ran, versions.head) == ("", versions.old)


def test_only_signed_tag_is_accepted_where_signers_are_configured(versions: Checkout, tmp_path: Path) -> None:
    versions.git("checkout", "--quiet", "v2")
    for who in ("trusted", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / who], check=True)
        sign = ("-c", "gpg.format=ssh", "-c", f"user.signingkey={tmp_path / who}")
        versions.git(*sign, "tag", "--sign", "--message=2.0", f"by-{who}")
    versions.git("checkout", "--quiet", "main")
    # A branch of that name must not be checked out in the tag's place.
    versions.git("branch", "by-trusted", versions.old)
    signers = tmp_path / "signers"
    signers.write_text(f"a@example.org {(tmp_path / 'trusted.pub').read_text()}")
    versions.git("config", "gpg.ssh.allowedSignersFile", str(signers))
    for name in ("v2", "by-stranger"):
        with pytest.raises(HostError, match=rf"The tag {name} has no valid signature \("):
            versions.upgrade(name, answer=True)
        assert (versions.ran, versions.head) == ("", versions.old)
    assert versions.upgrade("by-trusted", answer=True) == 0
    assert versions.ran == versions.new


def test_failure_leaves_the_branch_that_was_checked_out(versions: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATUS", "1")
    assert versions.upgrade("v2", answer=True)
    assert versions.ran == versions.new
    assert (versions.head, versions.git("symbolic-ref", "--short", "HEAD")) == (versions.old, "main")


def test_upgrade_needs_another_version_and_a_recorded_start(versions: Checkout) -> None:
    assert not upgrade.prepare(versions.root)
    (versions.root / ".stack" / "started.json").unlink()
    with pytest.raises(HostError, match="no commit to return to"):
        upgrade.prepare(versions.root)
    shutil.rmtree(versions.root / ".git")
    with pytest.raises(HostError, match="is not a git checkout"):
        upgrade.prepare(versions.root)
    assert not unfinished.has_upgrade(versions.root)


def test_own_change_that_would_block_a_return_is_found(versions: Checkout) -> None:
    (versions.root / "extra.txt").write_text("torchmetrics\n")
    assert checkout.obstacles(versions.root, versions.old, versions.new) == []
    (versions.root / "platform/pyproject.toml").write_text("mine")
    assert checkout.obstacles(versions.root, versions.old, versions.new) == ["platform/pyproject.toml"]


def test_interrupted_upgrade_blocks_other_changes(tmp_path: Path) -> None:
    prepared(tmp_path)
    with pytest.raises(HostError, match="`make upgrade` completes it"):
        unfinished.check(tmp_path)
    with pytest.raises(HostError, match="`make upgrade` completes it"):
        list(rotation.rotate(tmp_path))
    with pytest.raises(HostError, match="`make upgrade` completes it"):
        list(backup.restore(tmp_path, str(tmp_path)))


def test_interrupted_upgrade_is_continued_as_it_was_begun(versions: Checkout) -> None:
    saved = prepared(versions.root)
    upgrade.prepare(versions.root)
    assert saved.facts == FACTS
    program = saved.program / "mlplatform"
    program.mkdir(parents=True)
    (program / "__init__.py").touch()
    (program / "__main__.py").write_text("import sys\nprint('the saved program', *sys.argv[1:])\n")
    for words in (["upgrade"], ["upgrade", "--to", "v2"]):
        command = [sys.executable, "-m", "mlplatform", "stack", *words]
        done = subprocess.run(command, cwd=versions.root, env=os.environ, capture_output=True, text=True, check=True)
        assert done.stdout == f"the saved program stack perform-upgrade --root {versions.root}\n"
    assert versions.head == versions.old


def test_half_removed_upgrade_is_none(tmp_path: Path) -> None:
    saved = prepared(tmp_path)
    (tmp_path / unfinished.UPGRADE / unfinished.FACTS).unlink()
    assert not unfinished.has_upgrade(tmp_path)
    with pytest.raises(HostError, match="run `make upgrade`"):
        upgrade.perform(tmp_path, print)
    assert not saved.failure


def test_failure_is_remembered_and_folder_removed(tmp_path: Path) -> None:
    saved = prepared(tmp_path)
    assert (saved.failure, saved.has_dump) == ("", False)
    saved.failure = "it broke"
    again = Former(tmp_path, tmp_path / unfinished.UPGRADE)
    assert again.failure == "it broke"
    again.forget()
    assert not (tmp_path / unfinished.UPGRADE).exists()


def test_settings_are_restored_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, folder = tmp_path / "checkout", tmp_path / "saved"
    generated = root / "compose" / "workers.cpu.generated.yaml"
    generated.parent.mkdir(parents=True)
    # `make env` of the new version has written its number already.
    (root / ".env").write_text("# mine\nMLPLATFORM_VERSION=2.0\nWORKER_CPUS=7\n")
    generated.write_text("old\n")
    # No image is in use; `docker image rm` and the others have nothing to do.
    monkeypatch.setattr(former, "docker", lambda what, *command, **options: "")
    folder.mkdir()
    Former(root, folder).save(FACTS)
    (root / ".env").write_text("MLPLATFORM_VERSION=2.0\nRENAMED=7\n")
    generated.write_text("new\n")
    (root / "compose" / "notebooks.generated.yaml").write_text("only the new version has it\n")
    Former(root, folder).restore_settings()
    assert (root / ".env").read_text() == "# mine\nMLPLATFORM_VERSION=1.0\nWORKER_CPUS=7\n"
    assert generated.read_text() == "old\n"
    assert list(generated.parent.iterdir()) == [generated]
    assert (folder / "program" / "mlplatform" / "stack" / "upgrade.py").is_file()


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
    steps, saved = Steps(monkeypatch), prepared(versions.root)
    facts = json.dumps({**FACTS, "from": versions.old, "to": versions.new})
    (versions.root / unfinished.UPGRADE / unfinished.FACTS).write_text(facts)
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
    steps, saved = Steps(monkeypatch), prepared(versions.root)
    facts = json.dumps({**FACTS, "from": versions.old, "to": versions.new})
    (versions.root / unfinished.UPGRADE / unfinished.FACTS).write_text(facts)
    steps.errors["forwards"].append(HostError("it broke.\nmore"))
    steps.errors["backwards"].append(Killed())
    with pytest.raises(Killed):
        upgrade.perform(versions.root, print)
    versions.git("checkout", "--quiet", versions.old)
    with pytest.raises(HostError, match=r"2\.0 .* failed \(it broke\): the stack runs 1\.0 .* again"):
        upgrade.perform(versions.root, print)
    assert (steps.calls, versions.head) == (["forwards", "backwards", "backwards"], versions.old)
    assert not saved.program.parent.exists()
