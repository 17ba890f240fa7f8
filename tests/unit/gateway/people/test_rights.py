"""Rights over jobs: the whole table of relations and verbs."""

import pytest

from mlplatform.api.people import Role
from mlplatform_gateway.people.rights import SHARED, Attempt, Principal, Relation, Verb, allows, relation

ALICE = Principal("alice", {"vision": Role.MEMBER, "audio": Role.LEAD})

OF_ALICE, OF_SHARED = Attempt("hers", 1, "vision", ALICE), Attempt("ours", 1, None, SHARED)

TABLE = """
                see  logs  metadata  variables  values  again  stop  resume  delete  submit  urgent  shell
other           x
team-mate       x    x     x         x                  x                            x
lead            x    x     x         x                  x      x     x       x       x       x
owner           x    x     x         x          x       x      x     x       x       x       x       x
administrator   x    x     x         x                  x      x     x       x       x       x
attempt         x    x     x         x                  x      x                     x
"""


def cells() -> list[tuple[str, str, bool]]:
    """Relation, verb and whether it is allowed, by the columns of the table."""
    head, *rows = TABLE.strip("\n").splitlines()
    return [
        (row.split()[0], verb, row.ljust(len(head))[head.index(f" {verb}") + 1] == "x")
        for row in rows
        for verb in head.split()
    ]


@pytest.mark.parametrize(("who", "verb", "allowed"), cells())
def test_relation_allows_what_the_table_says(who: str, verb: str, allowed: bool) -> None:
    assert allows(Relation(who), Verb(verb)) is allowed


def test_table_is_complete() -> None:
    assert {(who, verb) for who, verb, _ in cells()} == {(who, verb) for who in Relation for verb in Verb}


@pytest.mark.parametrize(
    ("principal", "person", "team", "expected"),
    [
        (ALICE, "alice", "vision", Relation.OWNER),
        (ALICE, "alice", "speech", Relation.OWNER),
        (ALICE, "bob", "vision", Relation.TEAM_MATE),
        (ALICE, "bob", "audio", Relation.LEAD),
        (ALICE, "bob", "speech", Relation.OTHER),
        (ALICE, "bob", None, Relation.OTHER),
        (ALICE, None, None, Relation.OTHER),
        (SHARED, "alice", "vision", Relation.ADMINISTRATOR),
        (SHARED, None, None, Relation.OWNER),
        (Principal("ada", administrator=True), "alice", "vision", Relation.ADMINISTRATOR),
        (Principal("ada", administrator=True), "ada", "vision", Relation.OWNER),
        (Principal("alice", attempt=OF_ALICE), "alice", "speech", Relation.ATTEMPT),
        (Principal("alice", attempt=OF_ALICE), "bob", "vision", Relation.OTHER),
        (Principal("alice", attempt=OF_ALICE), None, None, Relation.OTHER),
        (Principal(attempt=OF_SHARED), None, None, Relation.ATTEMPT),
        (Principal(attempt=OF_SHARED), "alice", "vision", Relation.OTHER),
        # Neither is the owner of a job without one.
        (Principal(), None, None, Relation.OTHER),
        (Principal(), "", None, Relation.OTHER),
        (Principal(service="log shipper"), None, None, Relation.OTHER),
    ],
)
def test_relation_to_job(principal: Principal, person: str | None, team: str | None, expected: Relation) -> None:
    assert relation(principal, person, team) is expected
