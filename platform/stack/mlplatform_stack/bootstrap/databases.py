"""Program of the stack's one-shot services: create databases, buckets, accounts and their rights.

    python -m mlplatform_stack.bootstrap.databases storage     # service storage-init
    python -m mlplatform_stack.bootstrap.databases tracking    # service mlflow-migrate

Each step is declared as data and idempotent: whatever exists is changed to the declared state.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import Any

from mlplatform.errors import SettingsError
from mlplatform.secrets.credentials import read_mlflow_account
from mlplatform.settings.services import BUCKETS
from mlplatform_stack import compat
from mlplatform_stack.bootstrap import buckets
from mlplatform_stack.bootstrap import minio as store
from mlplatform_stack.bootstrap.secret_files import secret, values
from mlplatform_stack.credential_files import read_postgres_service
from mlplatform_stack.settings import StorageSettings

OWNERS = {"gateway": "gateway", "mlflow": "mlflow", "mlflow_auth": "mlflow"}
"""Database -> role that owns it."""


def make_databases() -> None:
    """Create the databases of MLflow (runs, accounts) and of the gateway (jobs), and a role that reads statistics."""
    from psycopg2 import sql
    from psycopg2.extensions import encrypt_password

    roles = dict(postgres_account(name) for name in ("mlflow", "gateway", "backup"))
    roles["exporter"] = secret("postgres_exporter_password").read_text()
    roles["postgres"] = secret("postgres_password").read_text()
    with closing(connect_as_superuser()) as connection:
        connection.autocommit = True  # CREATE DATABASE cannot run in a transaction
        cursor = connection.cursor()
        # Postgres logs changes of roles, with their passwords, also those that fail.
        cursor.execute("SET log_statement = 'none'; SET log_min_error_statement = 'panic'")
        for role, role_password in roles.items():
            cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,))
            verb = sql.SQL("ALTER" if cursor.fetchone() else "CREATE")
            # The exporter may read running statements, so that they must not contain passwords either.
            verifier = sql.Literal(encrypt_password(role_password, role, connection, "scram-sha-256"))
            cursor.execute(sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(verb, sql.Identifier(role), verifier))
        cursor.execute("GRANT pg_monitor TO exporter")
        cursor.execute("GRANT pg_read_all_data TO backup")
        for database, owner in OWNERS.items():
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,))
            if not cursor.fetchone():
                cursor.execute(
                    sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(database), sql.Identifier(owner))
                )
            # Every role may connect to a new database by default.
            cursor.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database)))
            cursor.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO backup").format(sql.Identifier(database)))
        # Nobody but the superuser and the exporter, which reads the statistics of all databases from there.
        cursor.execute("REVOKE ALL ON DATABASE postgres, template1 FROM PUBLIC")
        cursor.execute("GRANT CONNECT ON DATABASE postgres TO exporter")
    print("Postgres: roles and databases are as declared.")


def postgres_account(name: str) -> tuple[str, str]:
    """Return user and password of a service's account in Postgres."""
    return read_postgres_service(secret(f"postgres_{name}"))


def connect_as_superuser(database: str = "postgres") -> Any:
    """Connect to a database of Postgres as its superuser.

    Raises:
        SettingsError: the volume was created with passwords of another checkout.
    """
    account = {"host": "postgres", "user": "postgres", "dbname": database}
    return _connect("postgres_password", *({**account, "password": value} for value in values("postgres_password")))


def _connect(name: str, *accounts: dict[str, Any]) -> Any:
    """Connect to Postgres with the first account that it accepts.

    Raises:
        SettingsError: the volume was created with passwords of another checkout.
    """
    import psycopg2

    for account in accounts:
        try:
            return psycopg2.connect(**account)
        except psycopg2.OperationalError as error:
            if "password authentication failed" not in str(error):
                raise
    raise SettingsError(
        f"Postgres rejected the password in secrets/{name}: another checkout created its volume. Copy .env and "
        "secrets/ from that checkout to this one, or remove the stack with all of its data: `make destroy`."
    )


def has_table(cursor: Any, table: str) -> bool:
    """Return whether a service has made its tables; one that has never been started has none."""
    cursor.execute("SELECT to_regclass(%s)", (table,))
    return cursor.fetchone()[0] is not None


def make_buckets() -> None:
    """Create the buckets with their versions; make the accounts of our own, and check those of another server."""
    settings = StorageSettings.load()
    owner = buckets.owner(settings)
    client = buckets.client_of(settings, owner)
    buckets.make_buckets(client, settings)
    if settings.s3_endpoint_url:
        buckets.check_roles(settings)
        print(f"{settings.endpoint}: the buckets {', '.join(BUCKETS)} exist, and each role's account is accepted.")
        print(
            f"{settings.endpoint}: rights and BUCKET_QUOTAS are left to its operator, as they are set on our own only."
        )
    else:
        store.make_accounts(settings, owner)
        print("Object store: buckets, accounts and policies are as declared.")
    for sentence in buckets.keep_versions(client, settings):
        print(sentence)


def tracking() -> None:
    """Upgrade MLflow's databases to the version of this image and create its accounts."""
    _connect("postgres_mlflow", {"service": "mlflow"}).close()
    subprocess.run(["mlflow", "db", "upgrade", "postgresql+psycopg2:///mlflow?service=mlflow"], check=True)
    accounts = [read_mlflow_account(secret(f"mlflow_{name}")) for name in ("admin", "gateway", "job", "person")]
    compat.set_accounts([*accounts, ("prometheus", secret("metrics_password").read_text())])
    print("MLflow: databases are up to date and accounts as declared.")


if __name__ == "__main__":
    try:
        for step in {"storage": (make_databases, make_buckets), "tracking": (tracking,)}[sys.argv[1]]:
            step()
    except SettingsError as error:
        sys.exit(str(error))
