"""versitygw, an S3 server other than MinIO, with an account for each role of the stack."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
import httpx
from host import CHECKOUT, run, wait_for

from mlplatform.settings.services import BUCKETS
from mlplatform_stack.bootstrap.minio import RIGHTS

IMAGE = "versity/versitygw:v1.8.0"

OWNER = "operator"

_LIST = [
    *("s3:ListBucket", "s3:GetBucketLocation", "s3:ListBucketMultipartUploads"),
    *("s3:ListBucketVersions", "s3:GetBucketVersioning"),
]

_CONTAINER, _PORT = "store-versitygw", 37071


@dataclass(frozen=True)
class ExternalStore:
    """A running server.

    Attributes:
        address: URL that containers and this host reach.
        passwords: secret of the owner's account and of each role's, by name.
    """

    address: str
    passwords: dict[str, str]

    def write_accounts(self, folder: Path) -> None:
        """Write the accounts as its operator does, into `secrets/` of a checkout."""
        for name, secret in self.passwords.items():
            file = folder / f"s3_{'owner' if name == OWNER else name}"
            file.unlink(missing_ok=True)
            file.write_text(f"[default]\naws_access_key_id = {name}\naws_secret_access_key = {secret}\n")
            file.chmod(0o444)


@contextmanager
def started() -> Iterator[ExternalStore]:
    """Run a server with empty buckets in a container, on Docker's bridge; it ends with the context."""
    run(str(CHECKOUT / "tests/stack/bases.sh"), IMAGE)
    bridge = run("docker", "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}")
    listen = f"{bridge.stdout.strip()}:{_PORT}"
    store = ExternalStore(f"http://{listen}", {role: secrets.token_hex(16) for role in (OWNER, *RIGHTS)})
    root = {"ROOT_ACCESS_KEY": OWNER, "ROOT_SECRET_KEY": store.passwords[OWNER]}
    variables = [word for pair in root.items() for word in ("--env", "=".join(pair))]
    place = ("--network", "host", "--volume", "/data", "--volume", "/iam", "--name", _CONTAINER)
    server = (IMAGE, "--port", listen, "--iam-dir", "/iam", "posix", "/data")
    run("docker", "rm", "--force", "--volumes", _CONTAINER, check=False)
    run("docker", "run", "--detach", *place, *variables, *server)
    try:
        wait_for(lambda: httpx.get(store.address), "versitygw to answer", 30)
        _grant(store)
        yield store
    finally:
        run("docker", "rm", "--force", "--volumes", _CONTAINER)


def _grant(store: ExternalStore) -> None:
    """Make the account of each role, and give it the rights that roles have at MinIO."""
    client = boto3.client(
        *("s3", "us-east-1"),
        endpoint_url=store.address,
        aws_access_key_id=OWNER,
        aws_secret_access_key=store.passwords[OWNER],
    )
    admin = ("docker", "exec", _CONTAINER, "versitygw", "admin", "--endpoint-url", store.address)
    owner = ("--access", OWNER, "--secret", store.passwords[OWNER])
    for role in RIGHTS:
        account = ("--access", role, "--secret", store.passwords[role], "--role", "user")
        run(*admin, *owner, "create-user", *account)
    for bucket in BUCKETS:
        client.create_bucket(Bucket=bucket)
        statements = [
            {"Effect": "Allow", "Principal": {"AWS": [role]}, "Action": actions, "Resource": f"arn:aws:s3:::{place}"}
            for role, rights in RIGHTS.items()
            if bucket in rights
            for actions, place in ((_LIST, bucket), (list(rights[bucket]), f"{bucket}/*"))
        ]
        client.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": statements}))
