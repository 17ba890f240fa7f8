"""Upgrade of the running stack to the version that is checked out; if a step fails, the former one runs again.

The folder `.stack/upgrade` is the only state (`former.py`): it is complete before anything changes, gets the dump
of the databases before these change, and is removed at the end. Each step may be repeated, so the same command
completes an upgrade that was killed: forwards, or backwards once a step has failed. Any version's code may be checked
out meanwhile, so the program runs from a copy of its package in that folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform.settings.environment import changed_environment, environment
from mlplatform_stack import checkout, images, preflight, unfinished
from mlplatform_stack import compose as stack_compose
from mlplatform_stack.docker import compose, containers, output, service
from mlplatform_stack.former import Former
from mlplatform_stack.services import STORES
from mlplatform_stack.settings import StackSettings
from mlplatform_stack.unfinished import UPGRADE


def prepare(root: Path) -> bool:
    """Save what a return needs, unless an upgrade was interrupted; False if the stack runs this commit already.

    Raises:
        PlatformError: the stack cannot be upgraded as it is; nothing was changed.
    """
    if unfinished.has(root, "upgrade"):
        return True
    unfinished.check(root)
    facts = _facts(root)
    if facts["from"] == facts["to"]:
        return False
    checkout.state_folder(root)
    # One without its facts is what was left when the removal of another was killed.
    with atomic.new_folder(root / UPGRADE, is_replaceable=lambda _: True) as draft:
        Former(root, draft).save(facts)
    return True


def start_program(root: Path) -> None:
    """Replace this process by the program that performs the upgrade."""
    former = Former(root, root / UPGRADE)
    words = [sys.executable, "-P", "-m", "mlplatform", "stack", "perform-upgrade", "--root", str(root)]
    os.execve(sys.executable, words, {**environment(), "PYTHONPATH": str(former.program)})  # noqa: S606 no shell


def perform(root: Path, report: Callable[[str], None]) -> str:
    """Perform or continue an upgrade, or the return from it; return the sentence to show.

    Raises:
        HostError: a step failed, and the former version runs again; or the return failed, and the command continues it.
    """
    with atomic.alone(root / UPGRADE), changed_environment({"PYTHONPATH": None}):
        if not unfinished.has(root, "upgrade"):
            raise HostError("No upgrade was prepared: run `make upgrade`.")
        former = Former(root, root / UPGRADE)
        facts = former.facts
        if not former.failure:
            if checkout.commit(root) != facts["to"]:
                checkout.switch(root, facts["to"])
            try:
                _forwards(root, former, report)
            except (Exception, KeyboardInterrupt) as error:
                former.failure = _reason(error)
                report(f"failed: {error or 'interrupted'}")
        if failure := former.failure:
            _backwards(root, former, report)
        former.forget()
        to, start = (f"{facts[f'{end}_version']} ({facts[end][:10]})" for end in ("to", "from"))
        if failure:
            raise HostError(f"The upgrade to {to} failed ({failure}): the stack runs {start} again.")
        return f"The stack runs version {to}, after {start}."


def _facts(root: Path) -> dict[str, str]:
    """Return from which commit to which the stack is upgraded, with their versions, and the half that runs."""
    if not (to := checkout.commit(root)):
        raise HostError(f"{root} is not a git checkout, which a return needs: start the stack from a clone.")
    record = checkout.started(root)
    start = record["commit"]
    if not start or not checkout.commit(root, start):
        raise HostError(
            f"There is no commit to return to ({start or 'none was recorded'}): start the stack with `make up` from a "
            "clone of its version first."
        )
    if start != to and "postgres" not in {service(entry) for entry in _running(root)}:
        raise HostError("The stack does not run, so nothing can be saved: start the version that ran last.")
    if files := checkout.obstacles(root, start, to):
        raise HostError(f"{', '.join(files)}: changed here and between the versions, so commit or revert it.")
    versions = {f"{end}_version": checkout.version(root, name) for end, name in (("from", start), ("to", to))}
    return {"from": start, "to": to, "only": record["only"], **versions}


def _forwards(root: Path, former: Former, report: Callable[[str], None]) -> None:
    report("building and pulling images ...")
    if subprocess.run(["make", "--no-print-directory", "build"], cwd=root, check=False).returncode:
        raise HostError("`make build` failed, see above")
    images.pull_missing(root, former.facts["only"])
    is_saved_now = not former.has_dump
    if is_saved_now:
        preflight.check_host(root, former.facts["only"])
        report("stopping the services and saving the databases ...")
        # The stores run on, and nothing else writes to them then. Jobs continue after the start, as after any.
        if ids := [entry["Id"] for entry in _running(root) if service(entry) not in STORES]:
            output("docker", "stop", *ids)
        former.dump()
    report("starting the new version ...")
    stack_compose.up(root, former.facts["only"])
    # After an interruption, people may have deleted something meanwhile: the new version may run for hours by then.
    if is_saved_now:
        former.check()


def _backwards(root: Path, former: Former, report: Callable[[str], None]) -> None:
    report("returning to the former version ...")
    try:
        if checkout.commit(root) != former.facts["from"]:
            checkout.switch(root, former.facts["from"])
        former.restore_settings()
        if former.has_dump:
            output(*compose(root, "--profile", "*", "down", "--remove-orphans"))
            output(*compose(root, "up", "--detach", "--no-build", "--wait", "postgres"))
            former.restore_databases()
        stack_compose.up(root, former.facts["only"])
    except Exception as error:
        raise HostError(
            f"The upgrade failed ({former.failure}), and so did the return ({_reason(error)}): correct that and repeat "
            "the command, which continues."
        ) from error


def _running(root: Path) -> list[dict[str, Any]]:
    """Return Docker's description of each container of the stack that runs."""
    found = containers(StackSettings.load(root / ".env").stack_prefix)
    return [entry for entry in found if entry["State"]["Running"]]


def _reason(error: BaseException) -> str:
    """Return the first line of an error, without the mark that ends its sentence; never an empty text."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error).strip().partition("\n")[0].rstrip(".:") or repr(error)
