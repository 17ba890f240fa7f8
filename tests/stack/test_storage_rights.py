"""Rights of each account of MinIO and Postgres: every action is tried with every account, and compared with a table.

A row names an action and the accounts that may perform it; all others must be refused.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from figures import count
from host import Stack
from minio.credentials import StaticProvider
from minio.error import MinioAdminException
from minio.minioadmin import MinioAdmin

from mlplatform.credentials import read_s3_account
from mlplatform.services.access_keys import foreign_keys
from mlplatform.services.buckets import set_quotas
from mlplatform.settings.storage import bucket_quotas

ACCOUNTS = ("mlflow", "gateway", "job", "attempts", "people", "person", "backup", "prometheus", "stranger")

CHANGED = "rights-changed"
"""Name of a key below the account of attempts, where none counts as foreign."""

REFUSED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch")


@dataclass(frozen=True)
class Account:
    """Clients of one account of MinIO."""

    name: str
    server: str
    key: str
    secret: str

    def client(self, service: str = "s3", key: tuple[str, str, str | None] | None = None) -> Any:
        access, secret, token = key or (self.key, self.secret, None)
        return boto3.client(
            *(service, "us-east-1"),
            endpoint_url=f"http://{self.server}",
            aws_access_key_id=access,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=Config(retries={"max_attempts": 1}),
        )

    @property
    def admin(self) -> MinioAdmin:
        return MinioAdmin(endpoint=self.server, credentials=StaticProvider(self.key, self.secret), secure=False)

    def make_key(self, **values: str) -> None:
        """Make a key below the account, and remove it."""
        made = json.loads(self.admin.add_service_account(**values))
        self.admin.delete_service_account(made["credentials"]["accessKey"])

    def read_with_session(self) -> None:
        """Read a bucket that the account may read, with credentials that outlive its password by up to a year."""
        answer = self.client("sts").assume_role(
            RoleArn="arn:xxx:xxx:xxx:xxxx", RoleSessionName="rights", DurationSeconds=31536000
        )["Credentials"]
        session = (answer["AccessKeyId"], answer["SecretAccessKey"], answer["SessionToken"])
        self.client(key=session).list_objects_v2(Bucket=OWN_BUCKET[self.name])


OWN_BUCKET = {"mlflow": "mlflow-artifacts", "gateway": "jobs", "prometheus": "ray", "stranger": "ray"}
OWN_BUCKET |= {"job": "ray", "attempts": "ray", "people": "ray", "person": "ray", "backup": "ray"}

# Bucket: the accounts that may list, read, and write in it, and delete in it if they are others. The object `given`
# exists, `new` does not. While a backup runs, it lets the buckets without versions keep them.
BUCKETS: dict[str, dict[str, tuple[str, ...]]] = {
    "mlflow-artifacts": {
        "list": ("mlflow", "person", "backup"),
        "read": ("mlflow", "person", "backup"),
        "write": ("mlflow",),
    },
    "ray": {
        "list": ("gateway", "job", "attempts", "people", "person", "backup"),
        "read": ("job", "attempts", "people", "person", "backup"),
        "write": ("job", "attempts", "person"),
        # The gateway removes checkpoints of ended jobs, if that is set.
        "delete": ("gateway", "job", "attempts", "person"),
        "versions": ("backup",),
    },
    "teams": {
        "list": ("attempts", "people", "person", "backup"),
        "read": ("attempts", "people", "person", "backup"),
        "write": ("attempts", "people", "person"),
        "delete": ("people", "person"),
        "versions": ("backup",),
    },
    "datasets": {
        "list": ("job", "attempts", "people", "person", "backup"),
        "read": ("job", "attempts", "people", "person", "backup"),
        "write": ("people", "person"),
        "delete": ("person",),
        "versions": ("backup",),
    },
    "jobs": {
        "list": ("gateway", "person", "backup"),
        "read": ("gateway", "person", "backup"),
        "write": ("gateway",),
    },
}

OBJECT: dict[str, tuple[str, Callable[[Any, str], object]]] = {
    "list": ("list", lambda s3, bucket: s3.list_objects_v2(Bucket=bucket)),
    "read": ("read", lambda s3, bucket: s3.get_object(Bucket=bucket, Key="rights/given")),
    "write": ("write", lambda s3, bucket: s3.put_object(Bucket=bucket, Key="rights/new", Body=b"x")),
    "overwrite": ("write", lambda s3, bucket: s3.put_object(Bucket=bucket, Key="rights/given", Body=b"x")),
    "copy": (
        "write",
        lambda s3, bucket: s3.copy_object(Bucket=bucket, Key="rights/copy", CopySource=f"{bucket}/rights/given"),
    ),
    "delete": ("delete", lambda s3, bucket: s3.delete_object(Bucket=bucket, Key="rights/other")),
    "delete bucket": ("", lambda s3, bucket: s3.delete_bucket(Bucket=bucket)),
    "open to strangers": ("", lambda s3, bucket: s3.put_bucket_policy(Bucket=bucket, Policy="{}")),
    "end versioning": (
        "versions",
        lambda s3, bucket: s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"}),
    ),
    "expire objects": ("", lambda s3, bucket: s3.delete_bucket_lifecycle(Bucket=bucket)),
    "list versions": ("list", lambda s3, bucket: s3.list_object_versions(Bucket=bucket)),
    "delete version": (
        "",
        lambda s3, bucket: s3.delete_object(Bucket=bucket, Key="rights/other", VersionId=str(uuid.uuid4())),
    ),
}
"""Action: the column of `BUCKETS` with the accounts that may, none if empty; and its request."""

ADMIN: dict[str, tuple[tuple[str, ...], Callable[[Account], object]]] = {
    "write a job's fence": (
        ("gateway", "job", "attempts", "person"),
        lambda account: account.client().put_object(Bucket="ray", Key="rights/attempt", Body=b"1"),
    ),
    "read a job's fence": (
        ("gateway", "job", "attempts", "people", "person", "backup"),
        lambda account: account.client().get_object(Bucket="ray", Key="rights/attempt"),
    ),
    "create bucket": ((), lambda account: account.client().create_bucket(Bucket=f"rights-{account.name}")),
    # The gateway holds these two accounts, and neither a job nor a person does.
    "make a key": (("attempts", "people"), lambda account: account.make_key()),
    "make a key with a chosen name": (
        ("attempts", "people"),
        lambda account: account.make_key(access_key="rights-key", secret_key=uuid.uuid4().hex),
    ),
    "change a key": (
        ("people",),
        lambda account: account.admin.update_service_account(access_key=CHANGED, description="changed"),
    ),
    "list own keys": (ACCOUNTS[:-1], lambda account: account.admin.list_service_account(account.key)),
    "change own password": ((), lambda account: account.admin.user_add(account.key, account.secret)),
    "change another's password": ((), lambda account: account.admin.user_add("rights-other", uuid.uuid4().hex)),
    "disable another": ((), lambda account: account.admin.user_disable("rights-other")),
    "list users": ((), lambda account: account.admin.user_list()),
    "take another's policy": ((), lambda account: account.admin.policy_set("person", user=account.key)),
    "write a policy": (
        (),
        lambda account: account.admin.policy_add(
            account.name,
            policy={"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["admin:*"]}]},
        ),
    ),
    "set a quota": ((), lambda account: account.admin.bucket_quota_set("ray", 1)),
    "read the server's state": ((), lambda account: account.admin.info()),
    "stop the server": ((), lambda account: account.admin.service_stop()),
    "read with a session": (("attempts", "people", "person"), Account.read_with_session),
}
"""Action: the accounts that may, and its request."""


def root_account(stack: Stack) -> Account:
    server = f"127.0.0.1:{stack.settings.minio_port}"
    return Account("root", server, stack.secret("minio_root_user"), stack.secret("minio_root_password"))


@pytest.fixture(scope="module")
def accounts(running: Stack) -> Iterator[dict[str, Account]]:
    """The accounts, and in each bucket the objects that the actions read and delete."""
    server = f"127.0.0.1:{running.settings.minio_port}"
    pairs = {name: read_s3_account(running.root / "secrets" / f"minio_{name}") for name in ACCOUNTS[:-1]}
    found = {name: Account(name, server, *pair) for name, pair in pairs.items()}
    found["stranger"] = Account("stranger", server, "stranger", "0" * 32)
    root = root_account(running)
    keys = ("given", "other", "attempt")
    for bucket in BUCKETS:
        for key in keys:
            root.client().put_object(Bucket=bucket, Key=f"rights/{key}", Body=b"weights")
    found["attempts"].admin.add_service_account(access_key=CHANGED, secret_key=uuid.uuid4().hex)
    yield found
    found["attempts"].admin.delete_service_account(CHANGED)
    for bucket in BUCKETS:
        for key in (*keys, "new", "copy"):
            root.client().delete_object(Bucket=bucket, Key=f"rights/{key}")


def performed(action: Callable[[], object]) -> bool:
    """Return whether an action was performed; raises if it failed for another reason than missing rights."""
    count("actions tried with accounts")
    try:
        action()
    except ClientError as error:
        if error.response["Error"]["Code"] in REFUSED:
            return False
        raise
    except MinioAdminException as error:
        if any(code in str(error) for code in REFUSED):
            return False
        raise
    return True


@pytest.mark.parametrize("action", OBJECT)
@pytest.mark.parametrize("bucket", BUCKETS)
def test_minio_accounts_use_buckets_as_table_says(accounts: dict[str, Account], bucket: str, action: str) -> None:
    column, request = OBJECT[action]
    may = {name for name, account in accounts.items() if performed(lambda a=account: request(a.client(), bucket))}
    table = {"delete": BUCKETS[bucket]["write"], **BUCKETS[bucket]}
    assert may == set(table.get(column, ()))


@pytest.mark.parametrize("action", ADMIN)
def test_minio_accounts_administer_as_table_says(accounts: dict[str, Account], action: str) -> None:
    allowed, request = ADMIN[action]
    assert {name for name, account in accounts.items() if performed(lambda a=account: request(a))} == set(allowed)


def test_keys_not_made_by_platform_are_listed(running: Stack, accounts: dict[str, Account]) -> None:
    root = root_account(running)
    own = [account.key for account in accounts.values()]
    root.admin.user_add("rights-other", uuid.uuid4().hex)
    key = json.loads(root.admin.add_service_account())["credentials"]["accessKey"]
    try:
        found = list(foreign_keys(root.admin, own, root.key))
        assert found == ["user rights-other", f"key {key} of {root.key}"]
    finally:
        root.admin.delete_service_account(key)
        root.admin.user_remove("rights-other")
    assert list(foreign_keys(root.admin, own, root.key)) == []


def test_replaced_and_deleted_artifacts_are_kept_for_days(running: Stack, accounts: dict[str, Account]) -> None:
    mlflow, root = accounts["mlflow"].client(), root_account(running).client()
    place = {"Bucket": "mlflow-artifacts", "Key": f"rights/{uuid.uuid4().hex}"}
    mlflow.put_object(**place, Body=b"weights")
    mlflow.put_object(**place, Body=b"POISON")
    mlflow.delete_object(**place)
    found = root.list_object_versions(Bucket=place["Bucket"], Prefix=place["Key"])
    assert found["DeleteMarkers"]
    texts = [root.get_object(**place, VersionId=version["VersionId"])["Body"].read() for version in found["Versions"]]
    assert texts == [b"POISON", b"weights"]

    (rule,) = root.get_bucket_lifecycle_configuration(Bucket=place["Bucket"])["Rules"]
    assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": running.settings.version_days}
    assert rule["Status"] == "Enabled"


def test_rewritten_logs_of_jobs_have_no_versions(running: Stack, accounts: dict[str, Account]) -> None:
    gateway, root = accounts["gateway"].client(), root_account(running).client()
    for folder, versions in (("logs", 1), ("packages", 2)):
        place = {"Bucket": "jobs", "Key": f"{folder}/rights-{uuid.uuid4().hex}/00000001.log"}
        for text in (b"first", b"second"):
            gateway.put_object(**place, Body=text)
        found = root.list_object_versions(Bucket="jobs", Prefix=place["Key"])
        assert len(found["Versions"]) == versions
        gateway.delete_object(**place)


def test_upload_beyond_quota_of_bucket_is_refused(running: Stack, accounts: dict[str, Account]) -> None:
    person, root = accounts["person"].client(), root_account(running)
    place = {"Bucket": "datasets", "Key": f"rights/{uuid.uuid4().hex}"}
    set_quotas(root.admin, {"datasets": 1000})
    try:
        with pytest.raises(ClientError, match="quota"):
            person.put_object(**place, Body=bytes(2000))
    finally:
        set_quotas(root.admin, bucket_quotas(running.settings.bucket_quotas))
    person.put_object(**place, Body=bytes(2000))
    person.delete_object(**place)
