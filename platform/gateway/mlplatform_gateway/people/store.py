"""People and teams in the gateway's database: each change is one transaction with its entry in the audit log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from mlplatform.api.people import Invited, Person, Role, TeamValues
from mlplatform.contract import PERSON_NAME
from mlplatform_gateway.audit.store import Actor, record
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.errors import ForbiddenError, NameTakenError, NoSuchNameError, PersonError, TeamInUseError
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.people.schema import LoginCodeRow, MemberRow, PersonRow, SessionRow, TeamRow, TokenRow
from mlplatform_gateway.people.secrets import forget
from mlplatform_gateway.people.tokens import new_code

DEFAULTS: Mapping[str, Any] = {**TeamValues().model_dump(), "caps": {}}
"""Values of a team of which nothing else is set."""
DEFAULT_TEAM = "default"
"""Team of the jobs that the shared token submits. It has no share, and everything while there are no others."""

RESERVED = frozenset(
    {
        # Accounts of services at Postgres, the object store and MLflow (`mlplatform_stack/secrets_folder.py`).
        *("postgres", "mlflow", "gateway", "backup", "exporter", "prometheus", "job", "person", "people"),
        # Principals of the audit log, and what could be mistaken for one.
        *("platform", "internal", "shared", "unknown", "anonymous", "everybody", "nobody", "local"),
        *("admin", "administrator", "root", "service", "system", "grafana"),
        # Buckets: `ray-<team>`, and those that exist.
        *("ray", "jobs", "datasets", "mlflow-artifacts"),
    }
)
"""Names that no person and no team can have."""


class People(Store):
    """People, teams and memberships.

    Every method raises UnreachableError while the database is unavailable; then nothing has changed.
    """

    @transaction
    def people(self, session: Session) -> list[Person]:
        """Return all people by name."""
        teams: dict[str, dict[str, Role]] = {}
        for member in session.scalars(select(MemberRow).order_by(MemberRow.joined, MemberRow.team)):
            teams.setdefault(member.person, {})[member.team] = Role(member.role)
        rows = session.scalars(select(PersonRow).order_by(PersonRow.name))
        return [
            Person(name=row.name, administrator=row.administrator, teams=teams.get(row.name, {}), created=row.created)
            for row in rows
        ]

    @transaction
    def teams(self, session: Session) -> Sequence[TeamRow]:
        """Return all teams by name."""
        return session.scalars(select(TeamRow).order_by(TeamRow.name)).all()

    @transaction
    def check_shells(self, session: Session, team: str | None) -> None:
        """Raise ForbiddenError if a team allows no shells in its jobs."""
        row = session.get(TeamRow, team) if team else None
        if row is not None and not row.shells:
            raise ForbiddenError(f"Team {team} allows no shells in its jobs; administrators can change that.")

    @transaction
    def webhook(self, session: Session, person: str) -> str | None:
        """Return the address to which messages about a person's jobs are sent; None if there is none."""
        return session.scalar(select(PersonRow.webhook).where(PersonRow.name == person))

    @transaction
    def set_webhook(self, session: Session, person: str, address: str | None, actor: Actor) -> None:
        """Set or remove a person's address.

        Raises:
            NoSuchNameError: the person does not exist.
        """
        _person(session, person).webhook = address
        # Not the address: its path may be a secret.
        record(session, actor, "set", f"webhook of {person}", after={"set": address is not None})

    @transaction
    def add_team(self, session: Session, name: str, values: Mapping[str, Any], actor: Actor) -> TeamRow:
        """Add a team.

        Args:
            values: columns that differ from `DEFAULTS`.

        Raises:
            PersonError: the name is invalid or that of a person.
            NameTakenError: the team exists.
        """
        check_name("team", name)
        if session.get(TeamRow, name):
            raise NameTakenError(f"Team {name} already exists; `mlplatform teams set {name}` changes it.")
        if session.get(PersonRow, name):
            raise PersonError(f"The name {name!r} is that of a person; choose another name for the team.")
        team = TeamRow(name=name, created=datetime.now(UTC), **{**DEFAULTS, **values})
        session.add(team)
        _flush(session, f"team {name}")
        record(session, actor, "add", f"team {name}", after=_facts(team))
        return team

    @transaction
    def set_team(self, session: Session, name: str, values: Mapping[str, Any], actor: Actor) -> TeamRow:
        """Change columns of a team.

        Raises:
            NoSuchNameError: the team does not exist.
        """
        team = _team(session, name, lock=True)
        before = _facts(team)
        for column, value in values.items():
            setattr(team, column, value)
        if "budget" in values:
            team.budget_warned = None
        record(session, actor, "set", f"team {name}", before, _facts(team))
        return team

    @transaction
    def add(
        self,
        session: Session,
        name: str,
        actor: Actor,
        team: str | None = None,
        lead: bool = False,
        administrator: bool = False,
        gpu_hours: float | None = None,
    ) -> Invited:
        """Add a person, or a team or rights to somebody, and return a new log-in code.

        Args:
            team: team to join; a membership that exists gets the role.
            lead: join as a lead of the team.
            administrator: give the rights of administrators; false leaves them as they are.
            gpu_hours: budget of the token that the code is exchanged for; None for no limit.

        Raises:
            PersonError: the name is invalid or that of a team, a new person gets neither a team nor the rights of
                administrators, or `lead` is set without a team.
            NoSuchNameError: the team does not exist.
            NameTakenError: another request adds the person at the same moment.
        """
        check_name("person", name)
        if lead and team is None:
            raise PersonError(f"{name} can only be the lead of a team; name the team (--team).")
        row = session.get(PersonRow, name, with_for_update=True)
        before = None if row is None else _rights(session, row)
        if row is None:
            if team is None and not administrator:
                raise PersonError(f"Person {name!r} does not exist yet; add one with a team (--team) or as --admin.")
            if session.get(TeamRow, name):
                raise PersonError(f"The name {name!r} is that of a team; choose another name for the person.")
            row = PersonRow(name=name, administrator=False, created=datetime.now(UTC))
            session.add(row)
            # Before any other statement, which would write the row, too.
            _flush(session, f"person {name}")
        row.administrator = row.administrator or administrator
        if team is not None:
            # Locked, because another request may be removing the team.
            _join(session, _team(session, team, lock=True).name, name, Role.LEAD if lead else Role.MEMBER)
        code, expires = new_code(session, name, gpu_hours)
        session.flush()
        record(session, actor, "add", f"person {name}", before, _rights(session, row))
        return Invited(name=name, added=before is None, code=code, expires=expires)

    @transaction
    def remove(self, session: Session, name: str, actor: Actor, team: str | None = None) -> None:
        """Remove a person with all memberships, codes and sessions, and revoke all tokens; schedules pause.

        Args:
            team: remove the person only from this team.

        Raises:
            NoSuchNameError: the person does not exist, or is not in the team.
        """
        row = _person(session, name)
        before = _rights(session, row)
        of_team = () if team is None else (JobRow.team == team,)
        _pause(session, f"its owner {name} was removed", JobRow.person == name, *of_team)
        if team is not None:
            _leave(session, name, team)
            record(session, actor, "remove", f"person {name}", before, _rights(session, row))
            return
        of_the_person = select(TokenRow.digest).where(TokenRow.owner == name)
        session.execute(delete(SessionRow).where(SessionRow.token_digest.in_(of_the_person)))
        valid = update(TokenRow).where(TokenRow.owner == name, TokenRow.revoked.is_(None))
        session.execute(valid.values(revoked=datetime.now(UTC)))
        session.execute(delete(LoginCodeRow).where(LoginCodeRow.person == name))
        session.execute(delete(MemberRow).where(MemberRow.person == name))
        forget(session, name)
        session.delete(row)
        record(session, actor, "remove", f"person {name}", before)

    @transaction
    def remove_team(self, session: Session, name: str, actor: Actor, open_jobs: int, force: bool = False) -> None:
        """Remove a team with all memberships; its jobs stay, and open ones continue without its share.

        Args:
            open_jobs: number of its jobs that have not ended.
            force: remove it although it has open jobs, or people who are in no other team.

        Raises:
            NoSuchNameError: the team does not exist.
            TeamInUseError: it has such jobs or people, and `force` is not set.
        """
        team = _team(session, name, lock=True)
        members = session.scalars(select(MemberRow).where(MemberRow.team == name).order_by(MemberRow.person)).all()
        if not force:
            _check_removable(session, name, open_jobs)
        before = _facts(team) | {"people": ", ".join(f"{member.person} ({member.role})" for member in members)}
        session.execute(delete(MemberRow).where(MemberRow.team == name))
        _pause(session, f"team {name} was removed", JobRow.team == name)
        session.delete(team)
        record(session, actor, "remove", f"team {name}", before)


def _pause(session: Session, why: str, *which: ColumnElement[bool]) -> None:
    """Pause schedules whose jobs their owners may no longer submit; a later person or team may have the same name."""
    scheduled = update(JobRow).where(JobRow.state == State.SCHEDULED, *which)
    session.execute(scheduled.values(due=None, message=f"Paused, because {why}."))


def _leave(session: Session, name: str, team: str) -> None:
    member = session.get(MemberRow, (team, name)) if is_name(team) else None
    if member is None:
        raise NoSuchNameError(f"{name} is not a member of team {team[:100]!r}; `mlplatform people list` lists teams.")
    session.delete(member)
    session.flush()


def _check_removable(session: Session, team: str, open_jobs: int) -> None:
    elsewhere = select(MemberRow.person).where(MemberRow.team != team)
    # Administrators submit jobs without a team.
    alone = select(PersonRow.name).join(MemberRow, MemberRow.person == PersonRow.name)
    alone = alone.where(MemberRow.team == team, ~PersonRow.administrator, PersonRow.name.not_in(elsewhere))
    people = session.scalars(alone.order_by(PersonRow.name)).all()
    jobs = f"{open_jobs} open {'job' if open_jobs == 1 else 'jobs'}, which would continue without its share"
    named = f"people who are in no other team and would submit nothing: {', '.join(people)}"
    if found := [sentence for sentence, exists in ((jobs, open_jobs), (named, people)) if exists]:
        raise TeamInUseError(
            f"Team {team} has {', and '.join(found)}; `mlplatform teams remove {team} --force` removes it nevertheless."
        )


def _person(session: Session, name: str) -> PersonRow:
    row = session.get(PersonRow, name) if is_name(name) else None
    if row is None:
        raise NoSuchNameError(f"Person {name[:100]!r} does not exist; `mlplatform people list` lists them.")
    return row


def _team(session: Session, name: str, lock: bool = False) -> TeamRow:
    team = session.get(TeamRow, name, with_for_update=lock) if is_name(name) else None
    if team is None:
        raise NoSuchNameError(f"Team {name[:100]!r} does not exist; `mlplatform teams add` adds one.")
    return team


def _flush(session: Session, what: str) -> None:
    """Write what was added; raise NameTakenError if another request has added it at the same moment."""
    try:
        session.flush()
    except IntegrityError as error:
        raise NameTakenError(f"Another request has changed the {what} at this moment; send yours again.") from error


def _join(session: Session, team: str, person: str, role: Role) -> None:
    member = session.get(MemberRow, (team, person))
    if member is None:
        session.add(MemberRow(team=team, person=person, role=role, joined=datetime.now(UTC)))
    else:
        member.role = role


def _rights(session: Session, person: PersonRow) -> dict[str, Any]:
    members = session.scalars(select(MemberRow).where(MemberRow.person == person.name).order_by(MemberRow.team))
    return {
        "administrator": person.administrator,
        "teams": ", ".join(f"{member.team} ({member.role})" for member in members),
    }


def _facts(team: TeamRow) -> dict[str, Any]:
    return {column: getattr(team, column) for column in DEFAULTS}


def is_name(name: str) -> bool:
    """Return whether a person or a team can have a name; others need not be looked up."""
    return PERSON_NAME.fullmatch(name) is not None


def check_name(what: str, name: str) -> str:
    """Return a name for a person or a team.

    Raises:
        PersonError: it is invalid or reserved.
    """
    if not is_name(name):
        raise PersonError(
            f"Invalid name of a {what} {name[:100]!r}: use 2 to 30 lower-case letters, digits and single '-', "
            "beginning with a letter."
        )
    if name in RESERVED:
        raise PersonError(f"The name {name!r} is reserved for the platform; choose another name for the {what}.")
    return name
