"""Accounts, rights and quotas at MinIO: what the stack declares for its own object store.

At another S3 server, its operator gives these rights to the accounts in `secrets/s3_<role>`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlplatform.credentials import minio_metrics_account, read_s3_account
from mlplatform.services.secret_files import secret
from mlplatform.settings.storage import BUCKETS, StorageSettings, bucket_quotas

if TYPE_CHECKING:
    from minio.minioadmin import MinioAdmin

_READ = ("s3:GetObject",)

_READ_VERSIONS = ("s3:GetObject", "s3:GetObjectVersion", "s3:GetObjectTagging", "s3:GetObjectVersionTagging")

_ADD = ("s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")

_WRITE = (*_ADD, "s3:DeleteObject")

_PEOPLE = {"ray": _WRITE, "datasets": _WRITE, "mlflow-artifacts": _READ}

# Role -> bucket -> allowed actions. Each also allows listing the bucket. The gateway makes the key of people below its
# own account (`gateway/control/people_key.py`), so that it has their rights, too.
RIGHTS: dict[str, dict[str, tuple[str, ...]]] = {
    "mlflow": {"mlflow-artifacts": _WRITE},
    "gateway": {**_PEOPLE, "jobs": _WRITE, "ray": (*_WRITE, "s3:DeleteObjectVersion")},
    "jobs": {"ray": _WRITE, "datasets": _ADD},
    "people": _PEOPLE,
    "backup": dict.fromkeys(BUCKETS, _READ_VERSIONS),
}

# MinIO lets every account do this for itself, whatever its policy allows, unless a policy denies it: make keys that
# never expire and outlive a rotation, and change its own password, which locks out everybody who shares the account.
_KEYS = ("admin:CreateServiceAccount", "admin:UpdateServiceAccount", "admin:RemoveServiceAccount")

_NO_NEW_KEYS: dict[str, object] = {"Effect": "Deny", "Action": [*_KEYS, "admin:CreateUser"]}

_SAME_PASSWORD: dict[str, object] = {"Effect": "Deny", "Action": ["admin:UpdateServiceAccount", "admin:CreateUser"]}


def _no_sessions(*buckets: str) -> dict[str, object]:
    """Return the statement that accepts an account's own key only: sessions and keys made from it can do nothing.

    No action of a policy covers STS' AssumeRole: each account may open sessions of up to a year, which outlive a
    rotation too. In a session, and with a key that an account has made, requests have the principal AssumedRole.
    """
    return {
        "Effect": "Deny",
        "Action": ["s3:*"],
        "Resource": [f"arn:aws:s3:::{bucket}" for bucket in buckets],
        "Condition": {"StringEquals": {"aws:principaltype": ["AssumedRole"]}},
    }


def _keep_versions(rights: dict[str, tuple[str, ...]]) -> dict[str, object]:
    """Return the statement that keeps an account that may delete objects from deleting their former versions."""
    kept = [bucket for bucket in BUCKETS if "s3:DeleteObjectVersion" not in rights.get(bucket, ())]
    resources = [f"arn:aws:s3:::{bucket}/*" for bucket in kept]
    return {"Effect": "Deny", "Action": ["s3:DeleteObjectVersion"], "Resource": resources}


def make_accounts(admin: MinioAdmin, settings: StorageSettings) -> None:
    """Set the account of each role with its password and rights, and the quotas of the buckets."""
    for role, rights in RIGHTS.items():
        statements = [statement for bucket in rights for statement in _statements(bucket, rights[bucket])]
        if role == "gateway":
            # The key of people has the principal AssumedRole.
            statements += [_no_sessions("jobs", "jobs/*"), _SAME_PASSWORD]
        elif role == "people":
            # The console opens a session for each person who logs in.
            statements.append(_NO_NEW_KEYS)
        else:
            statements += [_no_sessions("*"), _NO_NEW_KEYS]
        _grant(admin, read_s3_account(secret(f"s3_{role}")), role, [*statements, _keep_versions(rights)])
    metrics: dict[str, object] = {"Effect": "Allow", "Action": ["admin:Prometheus"]}
    account = minio_metrics_account(secret("minio_root_password").read_text())
    _grant(admin, account, "prometheus", [metrics, _NO_NEW_KEYS])
    quotas = bucket_quotas(settings.quotas)
    for bucket in BUCKETS:
        admin.bucket_quota_set(bucket, quotas.get(bucket, 0))


def connect(endpoint: str) -> tuple[MinioAdmin, tuple[str, str]]:
    """Return a client of MinIO's root account, and that account."""
    from minio.credentials import StaticProvider
    from minio.minioadmin import MinioAdmin

    root = ("root", secret("minio_root_password").read_text())
    host = endpoint.removeprefix("http://")
    return MinioAdmin(endpoint=host, credentials=StaticProvider(*root), secure=False), root


def _statements(bucket: str, actions: tuple[str, ...]) -> list[dict[str, object]]:
    about_bucket = ["s3:ListBucket", "s3:GetBucketLocation", "s3:ListBucketMultipartUploads"]
    if actions is _READ_VERSIONS:
        about_bucket += ["s3:ListBucketVersions", "s3:GetBucketVersioning"]
        # A backup lets this bucket keep all versions while it reads.
        about_bucket += ["s3:PutBucketVersioning"] if bucket == "ray" else []
    if "s3:DeleteObjectVersion" in actions:
        about_bucket += ["s3:ListBucketVersions", "s3:GetBucketVersioning"]
    return [
        {"Effect": "Allow", "Action": about_bucket, "Resource": [f"arn:aws:s3:::{bucket}"]},
        {"Effect": "Allow", "Action": list(actions), "Resource": [f"arn:aws:s3:::{bucket}/*"]},
    ]


def _grant(admin: MinioAdmin, account: tuple[str, str], policy: str, statements: list[dict[str, object]]) -> None:
    access_key, secret_key = account
    admin.policy_add(policy, policy={"Version": "2012-10-17", "Statement": statements})
    admin.user_add(access_key, secret_key)
    # Not attach_policy, the newer call, which fails if the policy is already attached.
    admin.policy_set(policy, user=access_key)
