"""Decayed use of persons, and of teams beyond their shares, while jobs start and stop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from workload import Job

from mlplatform.capacity.resources import rate
from mlplatform_gateway.queue.planner.queue import Team, Usage
from mlplatform_gateway.usage.ledger import Decayed


class _Meter:
    """Decayed use that grows by what is held."""

    def __init__(self) -> None:
        self.held = 0.0
        self._used = Decayed()

    def at(self, now: float) -> Decayed:
        return self._used.later(now, self.held)

    def set_held(self, now: float, held: float) -> None:
        self._used, self.held = self.at(now), held


class _AtTime(Mapping[str, float]):
    """Use of each at a time, calculated when it is read: most policies read none of it, or only of those who wait."""

    def __init__(self, meters: Mapping[str, _Meter], now: float) -> None:
        self._meters, self._now = meters, now

    def __getitem__(self, name: str) -> float:
        return self._meters[name].at(self._now).value

    def __iter__(self) -> Iterator[str]:
        return iter(self._meters)

    def __len__(self) -> int:
        return len(self._meters)


class Meters:
    """Meters of all persons and teams."""

    def __init__(self, teams: Mapping[str, Team]) -> None:
        self._teams = teams
        self._persons: dict[str, _Meter] = defaultdict(_Meter)
        self._held: dict[str, float] = dict.fromkeys(teams, 0.0)
        self._borrowed = {team: _Meter() for team in teams}

    def change(self, now: float, job: Job, sign: int) -> None:
        """Count a job that starts (1) or stops (-1); each of its workers has one CPU beside its GPU."""
        person = self._persons[job.person]
        person.set_held(now, person.held + sign * rate(job.gpus, job.gpus))
        self._held[job.team] += sign * job.gpus
        beyond = max(0.0, self._held[job.team] - self._teams[job.team].gpus)
        self._borrowed[job.team].set_held(now, rate(beyond, beyond))

    def at(self, now: float) -> Usage:
        """Return the decayed use at a time that is not before the last change; it is valid until the next one."""
        return Usage(persons=_AtTime(self._persons, now), borrowed=_AtTime(self._borrowed, now))
