"""Rights of the access keys at MinIO of attempts and of people.

The account below which keys are made has the sum of the rights of all of them (`RIGHTS` in `services/bootstrap.py`): a
key may do what both allow.
"""

from __future__ import annotations

from collections.abc import Collection

from mlplatform.settings.job import settings
from mlplatform.settings.storage import TEAMS_BUCKET
from mlplatform.storage import fence, notice
from mlplatform.storage.addresses import checkpoint_uri, split_uri

_SHARED = "datasets"
"""Bucket that every job may read, and every person add to."""

_ABOUT_BUCKET = ["s3:ListBucket", "s3:GetBucketLocation", "s3:ListBucketMultipartUploads"]

_ADD = ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]


_NO_ADMINISTRATION: dict[str, object] = {"Effect": "Deny", "Action": ["admin:*"]}
"""Without it, a key could be used to make further ones, which outlive it, and to change the account."""


def attempt_policy(job_id: str, team: str | None) -> dict[str, object]:
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
        _NO_ADMINISTRATION,
    ]
    return _policy(statements, [] if team is None else [team], ["s3:GetObject", *_ADD])


def person_policy(teams: Collection[str]) -> dict[str, object]:
    """Return the policy of the key of a person.

    It reads checkpoints and data sets, adds data sets, and reads, adds and deletes objects of the person's teams.

    Args:
        teams: the person's teams, 24 at most: a policy has 4096 bytes.
    """
    bucket, _ = split_uri(settings().storage)
    statements = [
        _statement("Allow", _ABOUT_BUCKET, bucket, _SHARED),
        _statement("Allow", ["s3:GetObject"], f"{bucket}/*", f"{_SHARED}/*"),
        _statement("Allow", _ADD, f"{_SHARED}/*"),
        _NO_ADMINISTRATION,
    ]
    return _policy(statements, teams, ["s3:GetObject", *_ADD, "s3:DeleteObject"])


def _policy(statements: list[dict[str, object]], teams: Collection[str], actions: list[str]) -> dict[str, object]:
    """Return a policy with statements, and with actions on the objects of teams, whose lists it may read."""
    if teams:
        theirs = {"Condition": {"StringLike": {"s3:prefix": [f"{team}/*" for team in teams]}}}
        statements += [
            _statement("Allow", ["s3:GetBucketLocation"], TEAMS_BUCKET),
            _statement("Allow", ["s3:ListBucket"], TEAMS_BUCKET) | theirs,
            _statement("Allow", actions, *(f"{TEAMS_BUCKET}/{team}/*" for team in teams)),
        ]
    return {"Version": "2012-10-17", "Statement": statements}


def _statement(effect: str, actions: list[str], *objects: str) -> dict[str, object]:
    return {"Effect": effect, "Action": actions, "Resource": [f"arn:aws:s3:::{each}" for each in objects]}
