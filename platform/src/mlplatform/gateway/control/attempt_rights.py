"""Rights of an attempt's access key at MinIO.

The account below which the keys are made has the sum of all of these (`RIGHTS` in `services/bootstrap.py`): a key may
do what both allow.
"""

from __future__ import annotations

from mlplatform.settings.storage import TEAMS_BUCKET
from mlplatform.storage import fence, notice
from mlplatform.storage.addresses import checkpoint_uri, split_uri

_SHARED = "datasets"
"""Bucket that every job may read."""

_ABOUT_BUCKET = ["s3:ListBucket", "s3:GetBucketLocation", "s3:ListBucketMultipartUploads"]

_ADD = ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]


def policy(job_id: str, team: str | None) -> dict[str, object]:
    """Return the policy of the key of a job's attempt.

    It reads checkpoints and data sets, as jobs of the shared token do; writes and deletes its own checkpoints, but not
    the files with which the gateway fences and notifies it; and reads and adds objects of its team.

    Args:
        job_id: id of the job; further attempts, and the job when it is resumed, write to the same folder.
        team: team of the job; None for none.
    """
    bucket, folder = split_uri(checkpoint_uri(job_id=job_id))
    own = f"{bucket}/{folder}"
    statements = [
        _statement("Allow", _ABOUT_BUCKET, bucket, _SHARED),
        _statement("Allow", ["s3:GetObject"], f"{bucket}/*", f"{_SHARED}/*"),
        _statement("Allow", [*_ADD, "s3:DeleteObject"], f"{own}*"),
        _statement("Deny", ["s3:PutObject", "s3:DeleteObject"], f"{own}{fence.NAME}", f"{own}{notice.NAME}"),
        # Without it, a key could be used to make further ones, which outlive the attempt, and to change the account.
        {"Effect": "Deny", "Action": ["admin:*"]},
    ]
    if team is not None:
        its = {"Condition": {"StringLike": {"s3:prefix": [f"{team}/*"]}}}
        statements += [
            _statement("Allow", ["s3:GetBucketLocation"], TEAMS_BUCKET),
            _statement("Allow", ["s3:ListBucket"], TEAMS_BUCKET) | its,
            _statement("Allow", ["s3:GetObject", *_ADD], f"{TEAMS_BUCKET}/{team}/*"),
        ]
    return {"Version": "2012-10-17", "Statement": statements}


def _statement(effect: str, actions: list[str], *objects: str) -> dict[str, object]:
    return {"Effect": effect, "Action": actions, "Resource": [f"arn:aws:s3:::{each}" for each in objects]}
