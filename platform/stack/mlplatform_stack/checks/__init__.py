"""Checks of `mlplatform doctor`: one module per group, and the registry that lists them.

A problem of a running stack that Prometheus can see is an alert, which `running.firing` shows. Other checks are of the
host before a start, or of what no metric shows. To add one, write a function that takes a `Place` and yields findings,
and list it in `CHECKS`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from mlplatform.errors import PlatformError
from mlplatform_stack.checks import machine, running, start
from mlplatform_stack.checks.finding import Finding, Place

Check = Callable[[Place], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    start.start_problems,
    start.interrupted,
    start.misfits,
    start.quotas,
    start.secret_files,
    start.no_timer,
    start.metadata_address,
    machine.limits,
    machine.drivers,
    running.unhealthy,
    running.firing,
    running.shared_notebook,
)
"""Every check, in the order in which its findings are shown."""


def examine(place: Place, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Run checks at the same time, because most of them wait for a command or a service; return their findings.

    A check that cannot run becomes a finding itself and does not hide those of the others.
    """
    with ThreadPoolExecutor(max_workers=max(len(checks), 1)) as pool:
        return [finding for found in pool.map(lambda check: _contained(check, place), checks) for finding in found]


def repair(findings: Sequence[Finding]) -> list[Finding]:
    """Apply the safe fixes; return the findings that had one."""
    fixed = []
    for finding in findings:
        if finding.repair:
            finding.repair()
            fixed.append(finding)
    return fixed


def _contained(check: Check, place: Place) -> list[Finding]:
    try:
        return list(check(place))
    except (PlatformError, OSError, ValueError, subprocess.SubprocessError) as error:
        name = f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
        return [
            Finding(
                f"The check {name} could not run: {error}",
                "What it looks for may be wrong and stay unnoticed.",
                "make status",
            )
        ]
