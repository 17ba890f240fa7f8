"""Caps of teams, persons and groups of jobs on what they hold at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from mlplatform.scheduling.queue import Caps, Reason, Rule, RunningJob, Team, WaitingJob
from mlplatform.scheduling.resources import format_amount
from mlplatform.scheduling.shares import EPSILON, Amount


@dataclass
class Held:
    """Resources that somebody holds, with those claimed for them."""

    gpus: float = 0
    cpus: float = 0
    jobs: int = 0


class Capped:
    """Comparison of what teams, persons and groups of jobs hold with their caps."""

    def __init__(self, teams: Mapping[str, Team]) -> None:
        """Begin with nothing held.

        Args:
            teams: by name.
        """
        self._teams = teams
        self._uncapped = {team.name for team in teams.values() if team.caps == team.person_caps == Caps()}
        self._held: dict[tuple[str, ...], Held] = defaultdict(Held)

    def add(self, job: WaitingJob | RunningJob, amount: Amount) -> None:
        """Count a job that runs, starts or has a claim."""
        keys: list[tuple[str, ...]] = [(job.team,), (job.team, job.person)]
        if job.group:
            keys.append(("group", job.team, job.person, job.group))
        for key in keys:
            held = self._held[key]
            held.gpus, held.cpus, held.jobs = held.gpus + amount[0], held.cpus + amount[1], held.jobs + 1

    def of_person(self, team: str, person: str) -> Held:
        """Return what a person holds in a team."""
        return self._held[team, person]

    def obstacle(self, job: WaitingJob, amount: Amount) -> Reason | None:
        """Return the cap that keeps a job waiting; None if it may start."""
        team = self._teams[job.team]
        running = self._held["group", job.team, job.person, job.group].jobs if job.group else 0
        if job.at_most is not None and job.group and running >= job.at_most:
            return Reason(Rule.GROUP, f"The job waits for its group: {running} of at most {job.at_most} jobs run.")
        if job.team in self._uncapped:
            return None
        person = self._held[job.team, job.person]
        return _obstacle(Rule.CAP_PERSON, job.person, person, team.person_caps, amount) or _obstacle(
            Rule.CAP_TEAM, f"team {job.team}", self._held[job.team,], team.caps, amount
        )


def _obstacle(rule: Rule, whose: str, held: Held, caps: Caps, amount: Amount) -> Reason | None:
    if caps.running is not None and held.jobs >= caps.running:
        return Reason(rule, f"The job waits because {whose} runs {held.jobs} jobs, of at most {caps.running}.")
    for name, have, more, most in (
        ("GPU", held.gpus, amount[0], caps.gpus),
        ("CPU", held.cpus, amount[1], caps.cpus),
    ):
        if most is not None and more > EPSILON and have + more > most + EPSILON:
            return Reason(
                rule,
                f"The job waits because {whose} holds {have:g} of at most {format_amount(name, most)}, "
                f"and it asks for {more:g}.",
            )
    return None
