"""Names of people and teams."""

import pytest

from mlplatform_gateway.errors import PersonError
from mlplatform_gateway.people.store import check_name
from mlplatform_stack.secrets_folder import S3_ROLES


@pytest.mark.parametrize("name", ["al", "alice", "alice-2", "a" * 30, "x-y-z"])
def test_name_is_accepted(name: str) -> None:
    assert check_name("person", name) == name


@pytest.mark.parametrize(
    "name", ["", "a", "Alice", "alice_2", "2nd", "-a", "a-", "a--b", "a" * 31, "a b", "á2", "ab\n"]
)
def test_invalid_name_is_rejected(name: str) -> None:
    with pytest.raises(PersonError, match="Invalid name of a person"):
        check_name("person", name)


@pytest.mark.parametrize("name", [*S3_ROLES, "admin", "postgres"])
def test_name_of_service_is_reserved(name: str) -> None:
    with pytest.raises(PersonError, match="is reserved"):
        check_name("team", name)
