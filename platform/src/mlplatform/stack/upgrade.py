"""Upgrade of the running stack to the version that is checked out, and the return to the former one if a step fails.

A failure or a crash may leave any version's code in the checkout, while this program still has to work. So it runs
from a copy of its package (`program/`), in a folder that has all that a return needs: the journal of the steps, and
settings, images and databases of the former version.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.settings.environment import changed_environment, environment
from mlplatform.settings.stack import StackSettings
from mlplatform.stack import checkout, doctor, former, images, unfinished
from mlplatform.stack import compose as stack_compose
from mlplatform.stack.journal import Journal, Step, UndoneError, run
from mlplatform.stack.services import profiles_of
from mlplatform.stack.unfinished import JOURNAL, UPGRADE, has_upgrade

_PROGRAM = "program"


def check_out_and_upgrade(root: Path, to: str, confirm: Callable[[str], bool]) -> int:
    """Check out another version, and let its code upgrade the stack; return the exit status.

    Args:
        root: folder of the checkout.
        to: branch, tag or commit.
        confirm: asks the operator about the commit that a name means, whose code runs as this user; a full id is not
            asked about.

    Raises:
        HostError: the version is unknown, has no valid signature or was not confirmed, or git cannot check it out;
            nothing was changed.
    """
    if has_upgrade(root):
        raise HostError("An upgrade was interrupted: run `make upgrade` without TO= first, which continues it.")
    fetched = checkout.fetch(root)
    if not (target := checkout.commit(root, to)):
        known = "" if fetched else ", and no server answered `git fetch`"
        raise HostError(f"TO={to} is not a branch, tag or commit of this checkout{known}: `git tag` lists versions.")
    checkout.verify_tag(root, to)
    if to != target and not confirm(f"{to} is the commit {target}. Run its code as this user"):
        raise HostError(f"Nobody has confirmed that {to} is the commit {target}: repeat with TO={target}.")
    current = checkout.commit(root)
    back = checkout.branch(root) or current
    # By a name, git might check out a branch where the tag of this name was verified.
    is_branch = checkout.is_branch(root, to) and not checkout.is_tag(root, to)
    checkout.switch(root, to if is_branch else target, detach=not is_branch)
    # From here on the checkout has another version's code, so nothing more is imported.
    result = subprocess.run(["make", "--no-print-directory", "upgrade", "TO="], cwd=root, check=False)
    if result.returncode and not has_upgrade(root) and checkout.commit(root) in (target, current):
        checkout.switch(root, back)
    return result.returncode


def prepare(root: Path) -> None:
    """Write the journal of a new upgrade, unless there is one, and the program that performs it.

    Raises:
        PlatformError: the stack cannot be upgraded as it is; nothing was changed.
    """
    if has_upgrade(root):
        return
    unfinished.check(root)
    facts = _facts(root)
    checkout.state_folder(root)
    folder = root / UPGRADE
    shutil.rmtree(folder, ignore_errors=True)
    package = Path(__file__).parents[1]
    shutil.copytree(package, folder / _PROGRAM / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    Journal(folder / JOURNAL, facts).write()


def start_program(root: Path) -> None:
    """Replace this process by the program that performs the upgrade."""
    program = root / UPGRADE / _PROGRAM
    words = [sys.executable, "-P", "-m", "mlplatform", "stack", "perform-upgrade", "--root", str(root)]
    os.execve(sys.executable, words, {**environment(), "PYTHONPATH": str(program)})  # noqa: S606 no shell


def perform(root: Path, report: Callable[[str], None]) -> str:
    """Perform or continue an upgrade, or continue the return from it; return the sentence to show.

    Raises:
        HostError: a step failed; the message has what was restored.
    """
    folder = root / UPGRADE
    with _alone(folder), changed_environment({"PYTHONPATH": None}):
        journal = Journal.load(folder / JOURNAL)
        if journal is None:
            raise HostError("No upgrade was prepared: run `make upgrade`.")
        to, facts = journal.facts["to"], journal.facts
        if not journal.failed and checkout.commit(root) != to:
            raise HostError(f"An upgrade to {to[:10]} was interrupted: `git checkout {to[:10]}`, then `make upgrade`.")
        upgrade = Upgrade(root, folder, facts)
        try:
            run(upgrade.steps(), journal, report)
        except UndoneError as failure:
            _finish(upgrade, folder)
            restored = ", ".join(journal.restored)
            raise HostError(
                f"The upgrade to {_shown(facts, 'to')} {failure}; restored {restored} of {_shown(facts, 'from')}."
            ) from None
        _finish(upgrade, folder)
        return f"The stack runs version {_shown(facts, 'to')}, after {_shown(facts, 'from')}."


def _shown(facts: dict[str, str], end: str) -> str:
    return f"{facts[f'{end}_version']} ({facts[end][:10]})"


def _finish(upgrade: Upgrade, folder: Path) -> None:
    upgrade.former.forget()
    # First, so that a half removed folder does not look like an upgrade that was interrupted.
    (folder / JOURNAL).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _facts(root: Path) -> dict[str, str]:
    """Decide from which commit to which the stack is upgraded."""
    record = checkout.started(root)
    start, to = _ends(root, record["commit"])
    version = checkout.version(root, start)
    _check_stack(root, start, version)
    if files := checkout.obstacles(root, start, to):
        raise HostError(f"{', '.join(files)}: changed here and between the versions, so commit or revert it.")
    return {
        "from": start,
        "from_version": version,
        "to": to,
        "to_version": checkout.version(root, to),
        "only": record["only"],
    }


def _ends(root: Path, start: str) -> tuple[str, str]:
    """Return the commit from which the stack was started, as `make up` has recorded it, and the one checked out."""
    if not (to := checkout.commit(root)):
        raise HostError(f"{root} is not a git checkout, which a return needs: start the stack from a clone.")
    if not start or not checkout.commit(root, start):
        raise HostError(
            f"There is no commit to return to ({start or 'none was recorded'}), as of a stack of version 0.3 or "
            "earlier, which cannot be upgraded: continue with its version, or start a new stack with another "
            "STACK_PREFIX in .env."
        )
    if start == to:
        raise HostError(f"The stack was started from this commit ({to[:10]}): check out another one, or set TO=.")
    return start, to


def _check_stack(root: Path, start: str, version: str) -> None:
    """Check that the stack runs, in the version from which the upgrade starts."""
    found = former.containers(root)
    if "postgres" not in (former.service(entry) for entry in found if entry["State"]["Running"]):
        raise HostError("The stack does not run, so nothing can be saved: start the version that ran last.")
    images_of_ours = [image for entry in found if (image := entry["Config"]["Image"]).startswith("mlplatform-")]
    if not any(image.endswith(f":{version}") for image in images_of_ours):
        shown = ", ".join(sorted(set(images_of_ours)))
        raise HostError(
            f"Version {version} ({start[:10]}) does not run here, but {shown}: start the version that ran last."
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock on an upgrade."""
    if not folder.is_dir():
        raise HostError("No upgrade was prepared: run `make upgrade`.")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise HostError("Another `make upgrade` is running; wait for it.") from None
    finally:
        os.close(descriptor)


class Upgrade:
    """Steps of an upgrade of the stack in `root`, each of which can be repeated."""

    def __init__(self, root: Path, folder: Path, facts: dict[str, str]) -> None:
        self._root = root
        self._facts = facts
        self._only = facts["only"]
        self.former = former.Former(root, folder / "former")

    def steps(self) -> list[Step]:
        """Return the steps in their order; they are undone in the opposite order."""
        return [
            Step("save", "saving settings and images", self._save, self._return),
            Step("build", "building and pulling images", self._build),
            Step("stop", "stopping all services but Postgres", self._stop),
            Step("dump", "saving the databases", self.former.dump),
            Step("migrate", "migrating volumes and databases", self._migrate, self._return_data),
            Step("start", "starting the new version", lambda: stack_compose.up(self._root, self._only)),
            Step("check", "comparing the data", self.former.check),
        ]

    def _save(self) -> None:
        self.former.save(self._facts["from_version"])

    def _build(self) -> None:
        if subprocess.run(["make", "--no-print-directory", "build"], cwd=self._root, check=False).returncode:
            raise HostError("`make build` failed, see above")
        images.pull_missing(self._root, self._only)
        doctor.check_host(self._root, self._only)

    def _stop(self) -> None:
        """Stop what writes, in the order of their dependencies; jobs continue after the start, as after any."""
        known = set(images.chosen(self._root, all_profiles=True))
        found = {former.service(entry): entry["Id"] for entry in former.containers(self._root)}
        others = sorted(found.keys() - {"postgres"})
        running = (name for name in others if name in known)
        former.composed(self._root, "stopping the services", "--profile", "*", "stop", *running)
        if gone := [found[name] for name in others if name not in known]:
            former.docker("stopping services that the new version lacks", "stop", *gone)

    def _migrate(self) -> None:
        """Start storage, which gives volumes to their users, and upgrade the databases."""
        profiles = profiles_of(StackSettings.load(self._root / ".env"), self._only)
        self._remove_containers()
        storage = [name for name in images.chosen(self._root, self._only) if name in ("postgres", "minio")]
        former.composed(self._root, "starting storage", "up", "--detach", "--no-build", "--wait", *storage)
        self._run_once("storage-init")
        if "tracking" in profiles:
            self._run_once("mlflow-migrate")
        if "ray" in profiles:
            self._run_once("gateway", "python", "-m", "mlplatform.gateway.migrations")

    def _remove_containers(self) -> None:
        former.composed(self._root, "removing the containers", "--profile", "*", "down", "--remove-orphans")

    def _run_once(self, service: str, *command: str) -> None:
        former.composed(self._root, service, "run", "--rm", "--no-deps", "--no-TTY", service, *command)

    def _return_data(self) -> str:
        """Give the databases back to the former version."""
        self._remove_containers()
        self._return_files()
        former.composed(self._root, "starting Postgres", "up", "--detach", "--no-build", "--wait", "postgres")
        self.former.restore_databases()
        return "databases"

    def _return(self) -> str:
        """Check out the former version, and start what no longer runs."""
        if not self.former.is_saved:
            self._check_out()
            return "the checkout"
        self._return_files()
        stack_compose.up(self._root, self._only)
        return "checkout, settings, images and services"

    def _return_files(self) -> None:
        self._check_out()
        self.former.restore()

    def _check_out(self) -> None:
        if checkout.commit(self._root) != self._facts["from"]:
            checkout.switch(self._root, self._facts["from"], detach=True)
