"""Upper limits of waiting jobs, checked at submission."""

from __future__ import annotations

from typing import Any

import pytest
from stored import begin, do, submitted

from mlplatform.gateway.audit.log import PLATFORM
from mlplatform.gateway.control.admission import Admission
from mlplatform.gateway.errors import QueueFullError
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.people.store import People


def job(job_id: str, person: str | None = "alice", team: str | None = "vision") -> JobRow:
    row = submitted(submission_id=job_id)
    row.person, row.team = person, team
    return row


def limit(store: JobStore, **caps: Any) -> Admission:
    """The check, with one waiting job of alice, and limits of team vision."""
    do(People(store.engine).add_team("vision", {"caps": caps}, PLATFORM))
    do(store.add(job("first")))
    unused: Any = None
    return Admission(store.engine, reconciler=unused, disks=unused)


def test_person_at_the_limit_is_named(store: JobStore) -> None:
    check = limit(store, person={"waiting": 1})
    do(check.check_limits(job("second", "bob")))
    with pytest.raises(QueueFullError, match=r"^alice has 1 waiting jobs, of at most 1 in team vision; submit"):
        do(check.check_limits(job("second")))


def test_limit_of_team_counts_all_of_its_people(store: JobStore) -> None:
    check = limit(store, team={"waiting": 1})
    with pytest.raises(QueueFullError, match=r"^Team vision has 1 waiting jobs"):
        do(check.check_limits(job("second", "bob")))


def test_started_job_does_not_count(store: JobStore) -> None:
    check = limit(store, person={"waiting": 1}, team={"waiting": 1})
    begin(store, "first")
    do(check.check_limits(job("second")))


@pytest.mark.parametrize("caps", [{}, {"team": {"waiting": None}}, {"person": {"running": 0}}])
def test_nothing_is_limited_without_a_number(store: JobStore, caps: dict[str, Any]) -> None:
    do(limit(store, **caps).check_limits(job("second")))


def test_shared_token_has_no_limit(store: JobStore) -> None:
    do(limit(store, team={"waiting": 0}).check_limits(job("second", None, None)))
