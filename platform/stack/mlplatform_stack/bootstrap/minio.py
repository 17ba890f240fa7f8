"""MinIO, the stack's own object store: all that depends on its admin interface and not on S3.

The one-shot `storage-init` sets the accounts of the roles, their rights and the quotas of the buckets; the gateway
makes and deletes the key of people; Prometheus has a token for the metrics. At another S3 server, its operator gives
these rights to the accounts in `secrets/s3_<role>`, and nothing here is used.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mlplatform.secrets.credentials import read_s3_account
from mlplatform.settings.services import BUCKETS, quotas_of
from mlplatform_stack.bootstrap.secret_files import secret
from mlplatform_stack.settings import StorageSettings

if TYPE_CHECKING:
    from minio.minioadmin import MinioAdmin

_TOKEN_EXPIRES = 4102444800
"""2100-01-01, seconds since 1970: longer than any stack. `make rotate` replaces the key that has signed the token."""

_READ_SECONDS = 60.0
"""Timeout of an answer; a start asks while all other services start. That of `MinioAdmin` is five minutes."""

_READ = ("s3:GetObject",)

_READ_VERSIONS = ("s3:GetObject", "s3:GetObjectVersion", "s3:GetObjectTagging", "s3:GetObjectVersionTagging")

_ADD = ("s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")

_WRITE = (*_ADD, "s3:DeleteObject")

_PEOPLE = {"ray": _WRITE, "datasets": _WRITE, "mlflow-artifacts": _READ}

# Role -> bucket -> allowed actions. Each also allows listing the bucket. The gateway makes the key of people below its
# own account (`mlplatform_gateway/people/s3_key.py`), so that it has their rights, too.
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


def make_accounts(settings: StorageSettings, root: tuple[str, str]) -> None:
    """Set, with the root account, that of each role with its password and rights, and the quotas of the buckets."""
    admin = _connect(settings.endpoint, root)
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
    _grant(admin, metrics_account(root[1]), "prometheus", [metrics, _NO_NEW_KEYS])
    quotas = quotas_of(settings.bucket_quotas)
    for bucket in BUCKETS:
        admin.bucket_quota_set(bucket, quotas.get(bucket, 0))


def metrics_account(root_password: str) -> tuple[str, str]:
    """Return the account with which Prometheus reads MinIO's metrics; its secret follows from the root password.

    So nobody has to store it: whoever has the root password sets the account, and Prometheus needs the token alone.
    """
    derived = hmac.digest(root_password.encode(), b"prometheus", "sha256")
    return "prometheus", _base64url(derived)[:32]  # 192 bits, as of other passwords


def metrics_token(root_password: Path, path: Path) -> None:
    """Write the bearer token that lets its holder read MinIO's metrics.

    A JSON web token (RFC 7519) signed with the account's secret key by HS512, as `mc admin prometheus generate` makes.
    """
    access_key, secret_key = metrics_account(root_password.read_text())
    header = _base64url(json.dumps({"alg": "HS512", "typ": "JWT"}).encode())
    claims = _base64url(json.dumps({"exp": _TOKEN_EXPIRES, "sub": access_key, "iss": "prometheus"}).encode())
    signature = hmac.new(secret_key.encode(), f"{header}.{claims}".encode(), hashlib.sha512).digest()
    path.write_text(f"{header}.{claims}.{_base64url(signature)}")


def _connect(endpoint: str, account: tuple[str, str]) -> MinioAdmin:
    from minio.credentials import StaticProvider
    from minio.minioadmin import MinioAdmin
    from urllib3 import PoolManager, Retry, Timeout

    address = urlsplit(endpoint)
    # A connection that was idle may be closed when it is used again.
    pool = PoolManager(
        timeout=Timeout(connect=3.0, read=_READ_SECONDS), retries=Retry(total=1, backoff_factor=0), maxsize=2
    )
    credentials, secure = StaticProvider(*account), address.scheme == "https"
    return MinioAdmin(endpoint=address.netloc, credentials=credentials, secure=secure, http_client=pool)


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


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
