"""Rights of each account of MinIO: every action is tried with every account, and compared with a table.

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

from mlplatform.secrets.credentials import read_s3_account
from mlplatform.settings.services import quotas_of
from mlplatform_stack.bootstrap.buckets import SNAPSHOTS, set_versioning
from mlplatform_stack.bootstrap.minio import metrics_account

pytestmark = pytest.mark.minio

ACCOUNTS = ("mlflow", "gateway", "jobs", "people", "backup", "prometheus", "stranger")

KEY = "key of people"
"""The access key that the gateway has made below its account and gives to people."""

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
OWN_BUCKET |= {"jobs": "ray", "people": "ray", "backup": "ray"}

# Bucket: the accounts that may list, read, and write in it, and delete in it if they are others. The object `given`
# exists, `new` does not. While a backup runs, `ray` keeps all versions.
BUCKETS: dict[str, dict[str, tuple[str, ...]]] = {
    "mlflow-artifacts": {
        "list": ("mlflow", "gateway", "people", KEY, "backup"),
        "read": ("mlflow", "gateway", "people", KEY, "backup"),
        "write": ("mlflow",),
    },
    "ray": {
        "list": ("gateway", "jobs", "people", KEY, "backup"),
        "read": ("gateway", "jobs", "people", KEY, "backup"),
        "write": ("gateway", "jobs", "people", KEY),
        "end versions": ("backup",),
        # `make prune` removes those of dropped checkpoints.
        "delete version": ("gateway",),
    },
    "datasets": {
        "list": ("gateway", "jobs", "people", KEY, "backup"),
        "read": ("gateway", "jobs", "people", KEY, "backup"),
        "write": ("gateway", "jobs", "people", KEY),
        "delete": ("gateway", "people", KEY),
    },
    "jobs": {"list": ("gateway", "backup"), "read": ("gateway", "backup"), "write": ("gateway",)},
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
        "end versions",
        lambda s3, bucket: s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"}),
    ),
    "expire objects": ("", lambda s3, bucket: s3.delete_bucket_lifecycle(Bucket=bucket)),
    "list versions": ("list", lambda s3, bucket: s3.list_object_versions(Bucket=bucket)),
    "delete version": (
        "delete version",
        lambda s3, bucket: s3.delete_object(Bucket=bucket, Key="rights/other", VersionId=str(uuid.uuid4())),
    ),
}
"""Action: the column of `BUCKETS` with the accounts that may, none if empty; and its request."""

ADMIN: dict[str, tuple[tuple[str, ...], Callable[[Account], object]]] = {
    "create bucket": ((), lambda account: account.client().create_bucket(Bucket=f"rights-{account.name}")),
    # For the key of people. It cannot be used for the gateway's own bucket.
    "make a key": (("gateway",), lambda account: account.make_key()),
    "make a key with a chosen name": (
        ("gateway",),
        lambda account: account.make_key(access_key="rights-key", secret_key=uuid.uuid4().hex),
    ),
    "change a key": (
        (),
        lambda account: account.admin.update_service_account(access_key=account.key, description="changed"),
    ),
    "list own keys": (ACCOUNTS[:-1], lambda account: account.admin.list_service_account(account.key)),
    "change own password": ((), lambda account: account.admin.user_add(account.key, account.secret)),
    "change another's password": ((), lambda account: account.admin.user_add("rights-other", uuid.uuid4().hex)),
    "disable another": ((), lambda account: account.admin.user_disable("rights-other")),
    "list users": ((), lambda account: account.admin.user_list()),
    "take another's policy": ((), lambda account: account.admin.policy_set("people", user=account.key)),
    "write a policy": (
        (),
        lambda account: account.admin.policy_add(
            account.name, policy={"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["admin:*"]}]}
        ),
    ),
    "set a quota": ((), lambda account: account.admin.bucket_quota_set("ray", 1)),
    "read the server's state": ((), lambda account: account.admin.info()),
    "stop the server": ((), lambda account: account.admin.service_stop()),
    # For the console.
    "read with a session": (("people",), Account.read_with_session),
}
"""Action: the accounts that may, and its request."""


def root_account(stack: Stack) -> Account:
    server = f"127.0.0.1:{stack.settings.s3_port}"
    return Account("root", server, "root", stack.secret("store_root_password"))


@pytest.fixture(scope="module")
def accounts(running: Stack) -> Iterator[dict[str, Account]]:
    """The accounts, and in each bucket the objects that the actions read and delete."""
    server = f"127.0.0.1:{running.settings.s3_port}"
    names = [name for name in ACCOUNTS if name not in ("prometheus", "stranger")]
    pairs = {name: read_s3_account(running.root / "secrets" / f"s3_{name}") for name in names}
    pairs["prometheus"] = metrics_account(running.secret("store_root_password"))
    pairs[KEY] = running.key_of_people()
    found = {name: Account(name, server, *pair) for name, pair in pairs.items()}
    found["stranger"] = Account("stranger", server, "stranger", "0" * 32)
    root = root_account(running)
    keys = ("given", "other")
    for bucket in BUCKETS:
        for key in keys:
            root.client().put_object(Bucket=bucket, Key=f"rights/{key}", Body=b"weights")
    yield found
    # The account of backups has ended them.
    set_versioning(root.client(), "ray", "Enabled", SNAPSHOTS)
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
    tried = {name: account for name, account in accounts.items() if name != KEY}
    assert {name for name, account in tried.items() if performed(lambda a=account: request(a))} == set(allowed)


def test_key_of_people_administers_nothing(accounts: dict[str, Account]) -> None:
    key, parent = accounts[KEY], accounts["gateway"].key
    for request in (
        lambda: key.make_key(),
        lambda: key.make_key(access_key="tries-key", secret_key=uuid.uuid4().hex),
        lambda: key.admin.update_service_account(access_key=key.key, secret_key=uuid.uuid4().hex),
        lambda: key.admin.user_add(parent, uuid.uuid4().hex),
        lambda: key.admin.policy_set("people", user=parent),
        lambda: key.admin.user_list(),
    ):
        with pytest.raises(MinioAdminException, match="Status: 403"):
            request()
    with pytest.raises(ClientError):
        key.client("sts").assume_role(RoleArn="arn:xxx:xxx:xxx:xxxx", RoleSessionName="rights")


def test_upload_beyond_quota_of_bucket_is_refused(running: Stack, accounts: dict[str, Account]) -> None:
    people, root = accounts["people"].client(), root_account(running)
    place = {"Bucket": "datasets", "Key": f"rights/{uuid.uuid4().hex}"}
    root.admin.bucket_quota_set("datasets", 1000)
    try:
        with pytest.raises(ClientError, match="quota"):
            people.put_object(**place, Body=bytes(2000))
    finally:
        root.admin.bucket_quota_set("datasets", quotas_of(running.settings.bucket_quotas).get("datasets", 0))
    people.put_object(**place, Body=bytes(2000))
    people.delete_object(**place)
