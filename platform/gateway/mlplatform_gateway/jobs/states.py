"""State machine of jobs, as pure functions: the verdict on an attempt, and the next state of its job.

    WAITING --start--> STARTING --Ray runs it--> RUNNING --exit 0--> SUCCEEDED
       ^                  |                         |----own fault, or at its limit--> FAILED
       |                  |                         |----stop-------> STOPPED
       +------------------+-- asked to leave, or lost or failed -----+
                              with restarts left

    STOPPED, FAILED --resumed--> WAITING
    HELD --all jobs before it have succeeded--> WAITING
       |---one has not-------> STOPPED
    SCHEDULED: submits jobs until it is stopped

SUCCEEDED, FAILED and STOPPED are final; the others are open. A job whose stop was requested ends STOPPED unless its
attempt has succeeded by then. Ray has five states: all that have not begun are its PENDING.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from mlplatform.text.durations import in_words


class State(StrEnum):
    """State of a job."""

    SCHEDULED = "SCHEDULED"
    HELD = "HELD"
    WAITING = "WAITING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def waits(self) -> bool:
        """True if the job is in the queue: it starts as soon as it fits."""
        return self is State.WAITING

    @property
    def comes_later(self) -> bool:
        """True if the job does not wait for resources: the planner does not consider it."""
        return self in (State.SCHEDULED, State.HELD)

    @property
    def has_attempt(self) -> bool:
        """True if the job's last attempt was submitted to Ray, or is about to be, and has not ended."""
        return self in (State.STARTING, State.RUNNING)

    @property
    def runs(self) -> bool:
        """True if Ray runs the entry point."""
        return self is State.RUNNING

    @property
    def final(self) -> bool:
        """True if the job has ended."""
        return self in (State.SUCCEEDED, State.FAILED, State.STOPPED)

    @property
    def of_ray(self) -> str:
        """Ray's name for the state, which its clients see."""
        return str(self) if self.final or self.runs else "PENDING"


class Outcome(StrEnum):
    """End of an attempt: success, a failure of its own, a requested stop, the loss of something it depends on, or the
    return of its resources to another job."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    LOST = "LOST"
    PREEMPTED = "PREEMPTED"


@dataclass(frozen=True)
class Verdict:
    """Outcome of an attempt, with its reason."""

    outcome: Outcome
    reason: str
    exit_code: int | None = None
    error_type: str | None = None
    limit_s: float | None = None
    """Limit that the attempt had reached when it was asked to leave: a restart would reach it again."""

    refused: bool = False
    """Ray rejects the job: a restart would not help."""


@dataclass(frozen=True)
class Leaving:
    """Request to leave that an attempt has received."""

    why: str
    """Sentence that says who gets its resources, and why."""

    limit_s: float | None = None
    """Limit that it had reached, in seconds; None if there is another reason."""

    fails: bool = False
    """True if it has to leave through a fault of its own."""


@dataclass(frozen=True)
class RestartCounts:
    """Attempts of a job, the ended one included; losses and failures before it, and the restarts allowed after each."""

    attempts: int
    losses: int
    max_restarts_on_loss: int
    failures: int
    max_restarts_on_failure: int


@dataclass(frozen=True)
class Transition:
    """Next state of a job after an attempt; WAITING means that it is started again after `delay_s` seconds."""

    state: State
    message: str
    delay_s: float = 0.0


_LOST_SUPERVISOR = {
    "JOB_SUPERVISOR_ACTOR_DIED": "the process that ran it has died",
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": "Ray did not start it in time",
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": "Ray could not start it",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": "Ray found no node for it",
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE": "Ray lost track of it",
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": "Ray could not run its command",
}
"""Ray's error types (`ray.dashboard.modules.job.common.JobErrorType`) that are not the job's own fault."""

_OUT_OF_MEMORY = ("OutOfMemory", "running low on memory", "memory monitor")
_FIRST_DELAY_S = 1.0
_MOST_DELAY_S = 60.0


def judge(ray: Mapping[str, Any] | None, node_dead: bool = False, unavailable: Sequence[str] = ()) -> Verdict | None:
    """Return the verdict on an attempt that was submitted to Ray; None while it runs.

    Args:
        ray: Ray's details of the attempt; None if Ray does not know it.
        node_dead: Ray lists the driver's node as dead, or the driver failed and its node does not answer.
        unavailable: services that did not answer at some time in the two minutes before the end: storage, tracking,
            Ray's head.
    """
    if ray is None:
        return Verdict(Outcome.LOST, "Ray was restarted and has no record of it")
    status = ray["status"]
    if status == "SUCCEEDED":
        return Verdict(Outcome.SUCCEEDED, "Job finished successfully.", exit_code=0)
    if status == "STOPPED":
        return Verdict(Outcome.STOPPED, "Job was intentionally stopped.")
    if status == "FAILED":
        return _judge_failed(ray, node_dead, unavailable)
    if node_dead:
        return Verdict(Outcome.LOST, "the node of its driver has died")
    return None


def after_notice(verdict: Verdict, leaving: Leaving | None) -> Verdict:
    """Return the verdict on an attempt that was asked to leave: if it was stopped or has failed, it has left.

    At its limit, or at fault, it has failed: PREEMPTED is the outcome of an attempt after which its job continues.
    """
    if leaving is None or verdict.refused or verdict.outcome not in (Outcome.STOPPED, Outcome.FAILED):
        return verdict
    outcome = Outcome.FAILED if leaving.fails or leaving.limit_s is not None else Outcome.PREEMPTED
    return Verdict(outcome, leaving.why, verdict.exit_code, verdict.error_type, leaving.limit_s)


def next_state(verdict: Verdict, count: RestartCounts, stop_requested: bool, resumes: bool) -> Transition:
    """Return the transition of a job whose attempt has ended.

    Args:
        count: attempts include the ended one; losses and failures do not.
        stop_requested: a user has requested to stop the job.
        resumes: a restart continues from a checkpoint; otherwise from the beginning.
    """
    if verdict.outcome is Outcome.SUCCEEDED:
        return Transition(State.SUCCEEDED, verdict.reason)
    if stop_requested or verdict.outcome is Outcome.STOPPED:
        return Transition(State.STOPPED, "Job was intentionally stopped.")
    if verdict.limit_s is not None:
        limit = in_words(verdict.limit_s)
        advice = "`mlplatform resume` continues it, if needed with a higher --limit"
        return Transition(State.FAILED, f"The job reached its limit of {limit}; {advice}.")
    if verdict.refused:
        return Transition(State.FAILED, verdict.reason)
    number = count.attempts + 1
    where = "continues from its last checkpoint" if resumes else "starts from the beginning"
    if verdict.outcome is Outcome.PREEMPTED:
        message = f"Attempt {number} {where} as soon as there is room; attempt {number - 1} has left. {verdict.reason}"
        return Transition(State.WAITING, message)
    lost = verdict.outcome is Outcome.LOST
    used, allowed = (
        (count.losses, count.max_restarts_on_loss) if lost else (count.failures, count.max_restarts_on_failure)
    )
    if used >= allowed:
        return Transition(State.FAILED, _given_up(verdict, used + 1) if lost else verdict.reason)
    what = "was lost" if lost else "failed"
    why = _first_line(verdict.reason) if lost or verdict.exit_code is None else f"exit code {verdict.exit_code}"
    message = f"Attempt {number} {where}; attempt {number - 1} {what}: {why}."
    return Transition(State.WAITING, message, min(_FIRST_DELAY_S * 2 ** min(used, 6), _MOST_DELAY_S))


def end_of(ray: Mapping[str, Any] | None, died: datetime | None, noticed: datetime) -> datetime:
    """Return the time at which an attempt has ended: the earliest of the times that are known.

    Args:
        ray: Ray's details of the attempt; `end_time` is in milliseconds, by the clock of a node. None if Ray does not
            know it.
        died: death of the driver's node, by Ray's head; None if the node is alive.
        noticed: time at which the gateway has noticed the end.
    """
    by_ray = ray.get("end_time") if ray else None
    known = [noticed if by_ray is None else datetime.fromtimestamp(by_ray / 1000, UTC), died or noticed]
    return min(noticed, *known)


def _judge_failed(ray: Mapping[str, Any], node_dead: bool, unavailable: Sequence[str]) -> Verdict:
    kind, message, code = ray.get("error_type"), ray.get("message") or "Job failed.", ray.get("driver_exit_code")
    if any(sign in message for sign in _OUT_OF_MEMORY) and not node_dead:
        return Verdict(Outcome.FAILED, message, code, kind)
    if kind in _LOST_SUPERVISOR:
        return Verdict(Outcome.LOST, _LOST_SUPERVISOR[kind], code, kind)
    if node_dead:
        return Verdict(Outcome.LOST, f"it ended with exit code {code} as the node of its driver died", code, kind)
    if unavailable:
        outage = " and ".join(unavailable)
        reason = f"it ended with exit code {code} after {outage} had been unavailable"
        return Verdict(Outcome.LOST, reason, code, kind)
    return Verdict(Outcome.FAILED, message, code, kind)


def _given_up(verdict: Verdict, losses: int) -> str:
    times = "once" if losses == 1 else f"{losses} times"
    reason = _first_line(verdict.reason)
    return f"Job was lost {times}, the last time because {reason}; `max_restarts_on_loss` allows more."


def _first_line(reason: str) -> str:
    return (reason.strip().splitlines() or [""])[0].rstrip(".,:")
