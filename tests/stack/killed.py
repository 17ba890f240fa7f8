"""Verbs of make that are killed at random moments under a training, and run again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from failure_training import nothing_is_lost, reports, starts, step
from figures import count
from host import SCRIPTS, Stack, wait_for

from mlplatform.client.jobs import ENDED, Jobs

STEPS, PAUSE = 300, 4.0
"""The training lasts longer than ten kills; it hurries afterwards."""

RESTARTS = 60
"""A killed change and its repetition restart Ray up to three times."""

KILLS = [
    pytest.param((1,), marks=pytest.mark.timeout(1800)),
    pytest.param((5, 5), marks=[pytest.mark.nightly, pytest.mark.timeout(3600)]),
]
"""Kills at random moments: so many of each change, which the same command continues each time, and completes."""


class Training:
    """A training that each of the kills must let continue, in one run and from a checkpoint."""

    def __init__(self, stack: Stack, jobs: Jobs) -> None:
        self._stack, self._jobs = stack, jobs
        command = ["python", "steps.py", f"--steps={STEPS}", f"--pause={PAUSE}"]
        self.job = jobs.submit(command, SCRIPTS, name="killed", max_restarts_on_loss=RESTARTS)
        wait_for(lambda: len(reports(jobs, self.job)) > 4, "the training to report", 300)
        self._last = step(jobs, self.job)

    def continues(self) -> None:
        """Wait until the stack is whole and the training has made a step that it had not made before."""
        wait_for(self._stack.whole, "the stack to be healthy", 300)
        wait_for(lambda: step(self._jobs, self.job) > self._last, "a step beyond the last one", 300)
        self._last = step(self._jobs, self.job)
        assert self._jobs.get(self.job).status not in ENDED, "the training ended before the last kill"

    def ends(self) -> None:
        """Wait for the end, and assert that nothing is lost and that no attempt began at step 0 again."""
        nothing_is_lost(self._stack, self._jobs, self.job, STEPS)
        first, *later = starts(self._jobs, self.job)
        assert first == 0
        assert later, "no attempt resumed, so no change stopped the training"
        print(f"{len(self._jobs.attempts(self.job))} attempts, which began at steps {[first, *later]}", flush=True)


def killed_and_repeated(
    stack: Stack, rng: random.Random, longest: float, verb: str, meanwhile: Callable[[], Any], in_a_row: int
) -> int:
    """Kill `make verb` with all of its processes at random moments, and run the same command again until it ends.

    The moments are printed, and within `longest` seconds; `meanwhile` is called after each kill. Returns the number of
    kills: fewer than `in_a_row` if a command ends before it is to be killed.
    """
    for kills in range(in_a_row):
        if not _killed(stack, rng.uniform(0, longest), verb):
            return kills
        meanwhile()
    begun = time.monotonic()
    print(stack.make(verb).stdout[-1500:])
    print(f"make {verb} completed it in {time.monotonic() - begun:.0f} s", flush=True)
    return in_a_row


def _killed(stack: Stack, moment: float, verb: str) -> bool:
    """Run a command and kill it after `moment` seconds; return false if it had ended before."""
    log = stack.root / "killed.log"
    with (
        log.open("w") as file,
        subprocess.Popen(
            ["make", verb], cwd=stack.root, stdout=file, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as process,
    ):
        try:
            status = process.wait(moment)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status = None
    printed = log.read_text()
    log.unlink()
    if status is not None:
        assert status == 0, printed
        print(f"make {verb} ended before it was to be killed, after {moment:.1f} s", flush=True)
        return False
    count(f"kills of make {verb}")
    print(f"make {verb} was killed after {moment:.1f} s; it had printed:\n{printed[-1500:]}", flush=True)
    return True
