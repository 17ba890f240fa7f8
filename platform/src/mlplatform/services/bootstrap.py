"""Program of the stack's one-shot services: create databases, buckets, accounts and their rights.

    python -m mlplatform.services.bootstrap storage     # service storage-init
    python -m mlplatform.services.bootstrap tracking    # service mlflow-migrate

Each step is declared as data and idempotent: whatever exists is changed to the declared state.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from mlplatform.compat import mlflow_server
from mlplatform.credentials import read_mlflow_account, read_postgres_service, read_s3_account
from mlplatform.errors import SettingsError
from mlplatform.services.access_keys import ATTEMPTS, NO_NEW_KEYS, NO_SESSIONS, OWN_KEYS, PEOPLE, found_keys
from mlplatform.services.buckets import KEEP_VERSIONS, VERSIONED, set_quotas, set_versions
from mlplatform.services.object_store import make_external_buckets
from mlplatform.services.secret_files import SECRETS as SECRETS
from mlplatform.services.secret_files import secret, values
from mlplatform.settings.storage import BUCKETS, TEAMS_BUCKET, StorageSettings, bucket_quotas

if TYPE_CHECKING:
    from minio import Minio
    from minio.minioadmin import MinioAdmin


_READ = ("s3:GetObject",)

# A backup lets a bucket that keeps no former versions keep them while it reads; it can neither write nor delete.
_READ_VERSIONS = (
    "s3:GetObject",
    "s3:GetObjectVersion",
    "s3:GetObjectTagging",
    "s3:GetObjectVersionTagging",
)

_ADD = ("s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")

_WRITE = (*_ADD, "s3:DeleteObject")

# Account -> bucket, or some of its objects -> allowed actions. Each also allows listing the bucket.
RIGHTS: dict[str, dict[str, tuple[str, ...]]] = {
    "mlflow": {"mlflow-artifacts": _WRITE},
    # `attempt`, beside a job's checkpoints, is the number that fences off earlier attempts; `notice` asks one to leave,
    # which writes `done` if it finishes first. With CHECKPOINTS_KEEP_DAYS, checkpoints of ended jobs are deleted.
    "gateway": {
        "jobs": _WRITE,
        "ray": ("s3:DeleteObject",),
        "ray/*/attempt": _WRITE,
        "ray/*/notice": _WRITE,
        "ray/*/done": _READ,
    },
    "job": {"ray": _WRITE, "datasets": _READ},
    # The sum of what the keys of attempts may do, each of which has a policy of its own (`gateway/control/`).
    ATTEMPTS: {"ray": _WRITE, "datasets": _READ, TEAMS_BUCKET: _ADD},
    # The sum of what the keys of people may do, which have policies of their own as well.
    PEOPLE: {"ray": _READ, "datasets": _ADD, TEAMS_BUCKET: _WRITE},
    "person": {"ray": _WRITE, "datasets": _WRITE, TEAMS_BUCKET: _WRITE, "mlflow-artifacts": _READ, "jobs": _READ},
    "backup": dict.fromkeys(BUCKETS, _READ_VERSIONS),
}

KEPT_DAYS = 1
"""Time after which the buckets remove a former version of an object, which they keep while a backup runs."""


def storage() -> None:
    """Create roles and databases in Postgres, and buckets, accounts and policies in the object store."""
    make_databases()
    make_buckets()
    list_keys()


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
        for database, owner in (("mlflow", "mlflow"), ("mlflow_auth", "mlflow"), ("gateway", "gateway")):
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


def make_buckets() -> None:
    """Create the buckets, one account per service, and the rights that `RIGHTS` declares for each."""
    settings = StorageSettings.load()
    if settings.account:
        print("\n".join(make_external_buckets(settings)))
        return
    client, admin, _ = connect_to_minio(settings.endpoint)
    for bucket in BUCKETS:
        if not client.bucket_exists(bucket_name=bucket):
            client.make_bucket(bucket_name=bucket)
        if bucket not in VERSIONED:
            _limit_versions(client, bucket)
    set_versions(client, settings.version_days)
    set_quotas(admin, bucket_quotas(settings.quotas))
    for account, rights in RIGHTS.items():
        allowed = [statement for bucket in rights for statement in _statements(bucket, rights[bucket])]
        # The console opens a session for each person who logs in; requests with a key of an account count as one.
        if account not in ("person", *OWN_KEYS):
            allowed += NO_SESSIONS
        _grant(admin, account, [*allowed, *OWN_KEYS.get(account, NO_NEW_KEYS)])
    _grant(admin, "prometheus", [{"Effect": "Allow", "Action": ["admin:Prometheus"]}, *NO_NEW_KEYS])
    print("MinIO: buckets, accounts and policies are as declared.")


def list_keys() -> None:
    """Print the users and access keys in MinIO that are not the platform's present ones."""
    settings = StorageSettings.load()
    if settings.account:
        return
    _, admin, root = connect_to_minio(settings.endpoint)
    for key in found_keys(admin, minio_users(), root):
        reason = "is for attempts from before a rotation" if key.is_former else "was not made by the platform"
        print(f"MinIO: the {key} {reason}; `make rotate ONLY=former` removes it.")


def connect_to_minio(endpoint: str) -> tuple[Minio, MinioAdmin, str]:
    """Return clients of MinIO as its root account, and that account's name."""
    from minio import Minio
    from minio.credentials import StaticProvider
    from minio.error import MinioAdminException
    from minio.minioadmin import MinioAdmin

    host, user = endpoint.removeprefix("http://"), secret("minio_root_user").read_text()
    *others, last = values("minio_root_password")
    for password in others:
        admin = MinioAdmin(endpoint=host, credentials=StaticProvider(user, password), secure=False)
        try:
            admin.user_list()
        except MinioAdminException:
            continue
        last = password
    client = Minio(endpoint=host, access_key=user, secret_key=last, secure=False)
    return client, MinioAdmin(endpoint=host, credentials=StaticProvider(user, last), secure=False), user


def minio_users() -> list[str]:
    """Return the names of the platform's users in MinIO."""
    return [read_s3_account(secret(f"minio_{account}"))[0] for account in (*RIGHTS, "prometheus")]


def _limit_versions(client: Minio, bucket: str) -> None:
    """Let a bucket without permanent versions remove those that a backup made it keep."""
    from minio.commonconfig import ENABLED, Filter
    from minio.lifecycleconfig import Expiration, LifecycleConfig, NoncurrentVersionExpiration, Rule

    if client.get_bucket_lifecycle(bucket_name=bucket):
        return
    rule = Rule(
        status=ENABLED,
        rule_filter=Filter(prefix=""),
        rule_id="after-backup",
        expiration=Expiration(expired_object_delete_marker=True),
        noncurrent_version_expiration=NoncurrentVersionExpiration(noncurrent_days=KEPT_DAYS),
    )
    client.set_bucket_lifecycle(bucket_name=bucket, config=LifecycleConfig([rule]))


def _statements(objects: str, actions: tuple[str, ...]) -> list[dict[str, object]]:
    bucket, _, some = objects.partition("/")
    about_bucket = ["s3:ListBucket", "s3:GetBucketLocation", "s3:ListBucketMultipartUploads"]
    if actions is _READ_VERSIONS:
        about_bucket += ["s3:ListBucketVersions", "s3:GetBucketVersioning"]
        about_bucket += [] if bucket in VERSIONED else ["s3:PutBucketVersioning"]
    return [
        {"Effect": "Allow", "Action": about_bucket, "Resource": [f"arn:aws:s3:::{bucket}"]},
        {"Effect": "Allow", "Action": list(actions), "Resource": [f"arn:aws:s3:::{bucket}/{some or '*'}"]},
    ]


def _grant(admin: MinioAdmin, account: str, statements: list[dict[str, object]]) -> None:
    access_key, secret_key = read_s3_account(secret(f"minio_{account}"))
    admin.policy_add(account, policy={"Version": "2012-10-17", "Statement": [*statements, *KEEP_VERSIONS]})
    admin.user_add(access_key, secret_key)
    # Not attach_policy, the newer call, which fails if the policy is already attached.
    admin.policy_set(account, user=access_key)


def tracking() -> None:
    """Upgrade MLflow's databases to the version of this image and create its accounts."""
    _connect("postgres_mlflow", {"service": "mlflow"}).close()
    subprocess.run(["mlflow", "db", "upgrade", "postgresql+psycopg2:///mlflow?service=mlflow"], check=True)
    mlflow_server.set_accounts(mlflow_accounts())
    print("MLflow: databases are up to date and accounts as declared.")


def mlflow_accounts() -> list[tuple[str, str]]:
    """Return user and password of each of the platform's accounts in MLflow."""
    accounts = [read_mlflow_account(secret(f"mlflow_{name}")) for name in ("admin", "gateway", "job", "person")]
    return [*accounts, ("prometheus", secret("mlflow_prometheus_password").read_text())]


if __name__ == "__main__":
    try:
        {"storage": storage, "tracking": tracking}[sys.argv[1]]()
    except SettingsError as error:
        sys.exit(str(error))
