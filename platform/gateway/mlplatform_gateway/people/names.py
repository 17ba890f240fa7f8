"""Names of people and teams, which MLflow must accept as names of accounts."""

from __future__ import annotations

from mlplatform.contract import PERSON_NAME
from mlplatform_gateway.errors import PersonError

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
