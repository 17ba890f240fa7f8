"""The object store's owner, and buckets on a server other than MinIO, whose operator sets accounts and limits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mlplatform.credentials import read_s3_account
from mlplatform.errors import SettingsError
from mlplatform.settings.storage import BUCKETS, StorageSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_SECRETS = Path("/run/secrets")

_PROBE = ".mlplatform-probe"


def owner_client(settings: StorageSettings) -> S3Client:
    """Return a client of the account that may do everything: MinIO's root, or the one of another server."""
    import boto3
    from botocore.config import Config

    if settings.account:
        try:
            key, secret = read_s3_account(settings.account)
        except KeyError as error:
            raise SettingsError(
                f"secrets/{settings.account.name} has no account for {settings.endpoint}: write aws_access_key_id and "
                "aws_secret_access_key below a line [default] into it."
            ) from error
    else:
        key, secret = ((_SECRETS / f"minio_root_{part}").read_text() for part in ("user", "password"))
    patient = Config(read_timeout=60, retries={"mode": "standard", "total_max_attempts": 5}, max_pool_connections=32)
    session = boto3.session.Session(aws_access_key_id=key, aws_secret_access_key=secret)
    return session.client("s3", endpoint_url=settings.endpoint, config=patient)


def make_external_buckets(settings: StorageSettings) -> list[str]:
    """Create the buckets that another server lacks, and check that the account may use them.

    Returns:
        Sentences that say what was done, and what of MinIO's set-up was left out.

    Raises:
        SettingsError: the server does not answer, or the account may not create or use a bucket.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    client, bucket = owner_client(settings), ""
    try:
        for bucket in BUCKETS:
            if not _exists(client, bucket):
                client.create_bucket(Bucket=bucket)
            client.put_object(Bucket=bucket, Key=_PROBE, Body=b"")
            client.delete_object(Bucket=bucket, Key=_PROBE)
    except ClientError as error:
        raise SettingsError(
            f"{settings.endpoint} refuses {error.operation_name} for the bucket {bucket} "
            f"({error.response['Error'].get('Code')}): create the buckets {', '.join(BUCKETS)} there, and give the "
            "account in secrets/external_s3 the right to list, read, write and delete in them."
        ) from error
    except BotoCoreError as error:
        raise SettingsError(
            f"The S3 server at {settings.endpoint} does not answer ({error}): start it, or correct S3_ENDPOINT_URL in "
            ".env."
        ) from error
    skipped = "accounts, policies, versions" + (" and BUCKET_QUOTAS" if settings.quotas else " and quotas")
    return [
        f"{settings.endpoint}: the buckets {', '.join(BUCKETS)} exist and can be written.",
        f"{settings.endpoint}: {skipped} are left to its operator, because they are set on MinIO only.",
    ]


def _exists(client: S3Client, bucket: str) -> bool:
    from botocore.exceptions import ClientError

    try:
        # Not HEAD, whose answers name no reason.
        client.list_objects_v2(Bucket=bucket, MaxKeys=1)
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchBucket":
            raise
        return False
    return True
