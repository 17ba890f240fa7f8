"""Arrays of jobs at the gateway."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mlplatform.client.connection import POLL_SECONDS, Connection
from mlplatform.client.follow import ENDED
from mlplatform.errors import JobError


@dataclass(frozen=True)
class Array:
    """Jobs that were submitted together.

    Attributes:
        id: id of the array.
        states: state of each job by its id, in the order of the index.
        messages: message of each job by its id.
    """

    id: str
    states: Mapping[str, str]
    messages: Mapping[str, str]

    @property
    def ended(self) -> bool:
        """True if all jobs have ended."""
        return ENDED.issuperset(self.states.values())

    @property
    def failed(self) -> list[str]:
        """Ids of the jobs that have ended without success."""
        return [job for job, state in self.states.items() if state in ENDED and state != "SUCCEEDED"]

    @property
    def progress(self) -> str:
        """Numbers of jobs by state, in words."""
        return counted(Counter(self.states.values()))


def counted(states: Mapping[str, int]) -> str:
    """Return how many jobs are in each state, as in `2 RUNNING, 14 PENDING`."""
    order = ("RUNNING", "PENDING", "SUCCEEDED", "FAILED", "STOPPED")
    return ", ".join(f"{states[state]} {state}" for state in order if states.get(state))


class Arrays:
    """Arrays at the gateway; every method raises the errors of `Jobs`."""

    def __init__(self, link: Connection) -> None:
        self._link = link

    def submit(self, job: Mapping[str, Any], count: int, at_most: int | None) -> str:
        """Submit an array; return its id.

        Args:
            job: body of the submission of one job.
            count: number of jobs.
            at_most: jobs that may run at the same time; None means unlimited.
        """
        body = {"job": job, "count": count, **({} if at_most is None else {"at_most": at_most})}
        return str(self._link.call("POST", "/platform/arrays", json=body).json()["array"])

    def get(self, array_id: str) -> Array:
        """Return an array.

        Raises:
            JobError: there is none with this id.
        """
        answer = self._link.call("GET", f"/platform/arrays/{array_id}", named=True).json()
        jobs = {job["submission_id"]: job for job in answer["jobs"]}
        return Array(
            answer["array"],
            {name: job["status"] for name, job in jobs.items()},
            {name: job["message"] for name, job in jobs.items()},
        )

    def find(self, array_id: str) -> Array | None:
        """Return an array; None if there is none with this id, or the gateway is older than arrays."""
        try:
            return self.get(array_id)
        except JobError:
            return None

    def wait(
        self, array_id: str, timeout_s: float | None = None, on_change: Callable[[str], None] = lambda _: None
    ) -> Array:
        """Wait until all jobs of an array have ended, successfully or not.

        Args:
            array_id: the array.
            timeout_s: longest wait in seconds; None means no limit.
            on_change: called with the number of jobs in each state, when it changes.

        Raises:
            JobError: there is no such array, or not all of its jobs have ended within `timeout_s` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        array, shown = self._link.patiently(lambda: self.get(array_id), known=False), ""
        while True:
            if (now := array.progress) != shown:
                on_change(now)
                shown = now
            if array.ended:
                return array
            if deadline is not None and time.monotonic() > deadline:
                raise JobError(f"Array {array_id} has not ended after {timeout_s:.0f} s: {shown}; wait again.")
            time.sleep(POLL_SECONDS)
            array = self._link.patiently(lambda: self.get(array_id))

    def stop(self, array_id: str) -> int:
        """Ask all jobs of an array to end; return the number of those that had not ended before."""
        return int(self._link.call("POST", f"/platform/arrays/{array_id}/stop", named=True).json()["stopped"])
