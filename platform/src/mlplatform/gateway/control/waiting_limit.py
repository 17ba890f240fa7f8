"""Upper limits of the jobs that wait: those of a whole team, and of each person in it."""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from mlplatform.gateway.database.engine import Store, transaction
from mlplatform.gateway.errors import QueueFullError
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.people.schema import TeamRow


class WaitingLimit(Store):
    """Check of a submission; raises UnreachableError while the database is unavailable."""

    @transaction
    def check(self, session: Session, job: JobRow) -> None:
        """Reject a job that would exceed a limit; jobs that are submitted at the same moment may exceed it together.

        Args:
            job: the new job, with its owner and team.

        Raises:
            QueueFullError: the team or the person has as many waiting jobs as allowed.
        """
        team = session.get(TeamRow, job.team) if job.team else None
        if team is None:
            return
        of_team = JobRow.team == team.name
        for whose, name, which in (
            ("person", job.person, (of_team, JobRow.person == job.person)),
            ("team", f"Team {team.name}", (of_team,)),
        ):
            most = team.caps.get(whose, {}).get("waiting")
            if most is not None and (waiting := _waiting(session, *which)) >= most:
                raise QueueFullError(
                    f"{name} has {waiting} waiting jobs, of at most {most} in team {team.name}; submit the job when "
                    "others have started, or end some with `mlplatform stop`."
                )


def _waiting(session: Session, *which: ColumnElement[bool]) -> int:
    query = select(func.count()).select_from(JobRow)
    return session.scalar(query.where(JobRow.ended.is_(None), JobRow.state == State.WAITING, *which)) or 0
