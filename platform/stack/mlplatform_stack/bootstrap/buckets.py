"""Buckets on any S3 server: which there are, how long they keep former versions, and the role accounts in files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mlplatform.errors import SettingsError
from mlplatform.secrets.credentials import read_s3_account
from mlplatform.settings.services import BUCKETS
from mlplatform.storage import checkpoint_layout
from mlplatform.storage.s3 import WITHOUT_VERSIONS
from mlplatform_stack.bootstrap.minio import RIGHTS
from mlplatform_stack.bootstrap.secret_files import secret
from mlplatform_stack.settings import StorageSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SNAPSHOTS = (
    f"*/{checkpoint_layout.SNAPSHOT}",
    "*/reports/",
    *("*/experiment_state-", "*/basic-variant-state-", "*/search_gen_state-", "*/searcher-state-"),
    *("*/result.json", "*/progress.csv", "*/events.out.tfevents."),
)
"""Beginnings of the keys in `ray` that trainings and searches write again every few seconds: histories and snapshots of
Ray 2.60. A day of versions of one object would be thousands, which the server keeps in one file."""

_PROBE = ".mlplatform-probe"

_WITHOUT = (*WITHOUT_VERSIONS, "InvalidRequest", "AccessDenied", "MalformedXML")
"""Answers of a server that has no versions, no rules that remove them, or (as Amazon's) no exceptions from versions."""


@dataclass(frozen=True)
class Versions:
    """Time for which a bucket keeps replaced and deleted objects.

    Attributes:
        days: how long.
        excluded: beginnings of keys of which it keeps nothing; `*` stands for any text. An extension of S3, which
            other servers ignore.
        whole_backup: a backup keeps versions of these keys too while it reads.
    """

    days: int
    excluded: Sequence[str] = ()
    whole_backup: bool = False


def versioned(settings: StorageSettings) -> dict[str, Versions]:
    """Return the buckets that keep former versions: what is replaced or deleted by mistake can be recovered.

    A job's log is rewritten about once per second while the job prints: versions would take hundreds of times its size.
    """
    days = settings.version_days
    found = {"mlflow-artifacts": Versions(days), "datasets": Versions(days), "jobs": Versions(days, ["logs/"])}
    if settings.checkpoint_version_days:
        # The snapshots that a backup reads must name the checkpoints that it reads.
        found["ray"] = Versions(settings.checkpoint_version_days, SNAPSHOTS, whole_backup=True)
    return found


def client_of(settings: StorageSettings, account: tuple[str, str]) -> S3Client:
    """Return a client of an account, for many or large requests."""
    import boto3
    from botocore.config import Config

    patient = Config(read_timeout=60, retries={"mode": "standard", "total_max_attempts": 5}, max_pool_connections=32)
    session = boto3.session.Session(aws_access_key_id=account[0], aws_secret_access_key=account[1])
    return session.client("s3", endpoint_url=settings.endpoint, config=patient)


def owner(settings: StorageSettings) -> tuple[str, str]:
    """Return the account in a file that may do everything: that of the stack's own object store, or of another server.

    Raises:
        SettingsError: the file has none.
    """
    if not settings.s3_endpoint_url:
        return "root", secret("store_root_password").read_text()
    return read_s3_account(secret("s3_owner"))


def make_buckets(client: S3Client, settings: StorageSettings) -> None:
    """Create the buckets that are missing, and check that the owner may use all.

    Raises:
        SettingsError: the server does not answer, or the account may not create or use a bucket.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    bucket = ""
    try:
        for bucket in BUCKETS:
            try:
                # Not HEAD, whose answers name no reason.
                client.list_objects_v2(Bucket=bucket, MaxKeys=1)
            except client.exceptions.NoSuchBucket:
                client.create_bucket(Bucket=bucket)
            client.put_object(Bucket=bucket, Key=_PROBE, Body=b"")
            client.delete_object(Bucket=bucket, Key=_PROBE)
    except ClientError as error:
        raise SettingsError(
            f"{settings.endpoint} refuses {error.operation_name} for the bucket {bucket} "
            f"({error.response['Error'].get('Code')}): create the buckets {', '.join(BUCKETS)} there, and give the "
            "account in secrets/s3_owner the right to list, read, write and delete in them."
        ) from error
    except BotoCoreError as error:
        raise SettingsError(
            f"The S3 server at {settings.endpoint} does not answer ({error}): start it, or correct S3_ENDPOINT_URL in "
            ".env."
        ) from error


def check_roles(settings: StorageSettings) -> None:
    """Check that another server lets the account of each role, which its operator has written, list the role's buckets.

    Raises:
        SettingsError: it refuses one.
    """
    from botocore.exceptions import ClientError

    for role, rights in RIGHTS.items():
        client = client_of(settings, read_s3_account(secret(f"s3_{role}")))
        for bucket in rights:
            try:
                client.list_objects_v2(Bucket=bucket, MaxKeys=1)
            except ClientError as error:
                raise SettingsError(
                    f"{settings.endpoint} refuses the account in secrets/s3_{role} for the bucket {bucket} "
                    f"({error.response['Error'].get('Code')}): docs/operating.md lists the rights of each role."
                ) from error


def keep_versions(client: S3Client, settings: StorageSettings) -> Iterator[str]:
    """Let the buckets keep former versions for the days that are set; yield a sentence for each that cannot.

    Where a server has no rules that remove them, none are kept: nothing else would.
    """
    from botocore.exceptions import ClientError

    kept, is_ours = versioned(settings), not settings.s3_endpoint_url
    for bucket in BUCKETS:
        rule = kept.get(bucket)
        try:
            _expire(client, bucket, rule.days if rule else 1, replace=is_ours)
            if rule:
                set_versioning(client, bucket, "Enabled", rule.excluded)
            elif client.get_bucket_versioning(Bucket=bucket).get("Status") == "Enabled" and is_ours:
                set_versioning(client, bucket, "Suspended")
        except ClientError as error:
            if is_ours or error.response["Error"]["Code"] not in _WITHOUT:
                raise
            if rule:
                yield (
                    f"{settings.endpoint}: the bucket {bucket} keeps no former versions, because the server refuses "
                    f"{error.operation_name} ({error.response['Error']['Code']})."
                )


def _expire(client: S3Client, bucket: str, days: int, *, replace: bool) -> None:
    """Let a bucket remove former versions after some days, also those that only a backup has kept.

    Args:
        client: of the owner.
        days: how long it keeps them.
        replace: change rules that exist; those of another server are its operator's.
    """
    from botocore.exceptions import ClientError

    if not replace:
        try:
            if client.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules"):
                return
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchLifecycleConfiguration":
                raise
    rule: Any = {
        "ID": "versions",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "NoncurrentVersionExpiration": {"NoncurrentDays": days},
        "Expiration": {"ExpiredObjectDeleteMarker": True},
    }
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})


def set_versioning(
    client: S3Client, bucket: str, status: Literal["Enabled", "Suspended"], excluded: Sequence[str] = ()
) -> None:
    """Set whether a bucket keeps former versions, except for some beginnings of keys."""
    extension = "".join(f"<ExcludedPrefixes><Prefix>{prefix}</Prefix></ExcludedPrefixes>" for prefix in excluded)
    end = b"</VersioningConfiguration>"

    def add(params: dict[str, Any], **_: Any) -> None:
        params["body"] = params["body"].replace(end, extension.encode() + end)

    event = "before-call.s3.PutBucketVersioning"
    client.meta.events.register(event, add)
    try:
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})
    finally:
        client.meta.events.unregister(event, add)
