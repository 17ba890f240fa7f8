"""Buckets on another S3 server than MinIO, and backups of servers without versions, on a small local server.

The stack tests try them on MinIO and versitygw.
"""

import base64
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Serve

from mlplatform.errors import SettingsError
from mlplatform.settings.services import BUCKETS
from mlplatform_stack.backup import objects
from mlplatform_stack.bootstrap import buckets, secret_files
from mlplatform_stack.bootstrap import databases as bootstrap
from mlplatform_stack.bootstrap import minio as store
from mlplatform_stack.settings import StorageSettings

ERROR = "<Error><Code>{}</Code><Message>no</Message></Error>"


class Server:
    """Buckets and keys of an S3 server without versions; `forbidden` is the method that it refuses."""

    def __init__(self, *buckets: str, forbidden: str = "") -> None:
        self.keys: dict[str, set[str]] = {bucket: set() for bucket in buckets}
        self.forbidden = forbidden

    def __call__(self, method: str, path: str) -> tuple[int, str]:
        bucket, _, key = path.partition("?")[0].strip("/").partition("/")
        if method == self.forbidden:
            return 403, ERROR.format("AccessDenied")
        if bucket in self.keys and ("versioning" in path or "lifecycle" in path):
            return self._rule(method, bucket, path.partition("?")[2])
        if method == "PUT" and not key:
            assert bucket not in self.keys, "what exists is created again"
            self.keys[bucket] = set()
            return 200, ""
        if bucket not in self.keys:
            return 404, ERROR.format("NoSuchBucket")
        if "versions" in path or "versionId" in path:
            return 400, ERROR.format("InvalidArgument")
        return 200, self._answer(method, bucket, key)

    def _rule(self, method: str, bucket: str, query: str) -> tuple[int, str]:
        return 501, ERROR.format("NotImplemented")

    def _answer(self, method: str, bucket: str, key: str) -> str:
        if method == "PUT":
            self.keys[bucket].add(key)
        elif method == "DELETE":
            self.keys[bucket].discard(key)
        elif method == "POST":
            self.keys[bucket].clear()
            return "<DeleteResult/>"
        elif not key:
            names = sorted(self.keys[bucket])
            found = "".join(f"<Contents><Key>{name}</Key><Size>3</Size></Contents>" for name in names)
            return f"<ListBucketResult>{found}</ListBucketResult>"
        return "" if method != "GET" else key


class VersionedServer(Server):
    """A server whose buckets can keep former versions."""

    def __init__(self, *buckets: str) -> None:
        super().__init__(*buckets)
        self.versioned: set[str] = set()
        self.requests: list[str] = []

    def _rule(self, method: str, bucket: str, query: str) -> tuple[int, str]:
        self.requests.append(query)
        if "lifecycle" in query and method == "GET":
            return 404, ERROR.format("NoSuchLifecycleConfiguration")
        if "versioning" in query and method == "PUT":
            self.versioned.add(bucket)
        return 200, ""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], StorageSettings]:
    """Settings of a one-shot service that uses the server at an address."""
    for role in ("owner", *store.RIGHTS):
        text = f"[default]\naws_access_key_id = {role}\naws_secret_access_key = secret\n"
        (tmp_path / f"s3_{role}").write_text(text)
    monkeypatch.setattr(secret_files, "SECRETS", tmp_path)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")

    def load(address: str) -> StorageSettings:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("S3_ENDPOINT_URL", address)
        return StorageSettings.load()

    return load


def owner(settings: StorageSettings) -> Any:
    return buckets.client_of(settings, buckets.owner(settings))


def test_missing_buckets_are_created_and_probe_is_removed(
    serve: Serve, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server("ray")
    settings(serve(server))
    bootstrap.make_buckets()
    assert server.keys == {bucket: set() for bucket in BUCKETS}
    done, skipped, *without = capsys.readouterr().out.splitlines()
    assert "the buckets mlflow-artifacts, ray, datasets, jobs exist" in done
    assert "rights and BUCKET_QUOTAS are left to its operator" in skipped
    refused = "keeps no former versions, because the server refuses GetBucketLifecycleConfiguration (NotImplemented)."
    assert [line.endswith(refused) for line in without] == [True] * 4


@pytest.mark.parametrize(("forbidden", "refused"), [("PUT", "CreateBucket"), ("GET", "ListObjectsV2")])
def test_refusal_names_buckets_and_rights(serve: Serve, settings: Any, forbidden: str, refused: str) -> None:
    refusal = rf"refuses {refused} for the bucket mlflow-artifacts \(AccessDenied\): create the buckets .*s3_owner"
    known = settings(serve(Server(forbidden=forbidden)))
    with pytest.raises(SettingsError, match=refusal):
        buckets.make_buckets(owner(known), known)


def test_refused_account_of_a_role_is_named(serve: Serve, settings: Any) -> None:
    known = settings(serve(Server(*BUCKETS, forbidden="GET")))
    with pytest.raises(SettingsError, match=r"refuses the account in secrets/s3_mlflow for .*mlflow-artifacts \(Acc"):
        buckets.check_roles(known)


def test_account_that_is_not_filled_in_is_named(serve: Serve, settings: Any, tmp_path: Path) -> None:
    (tmp_path / "s3_jobs").write_text("# to fill in\n")
    known = settings(serve(Server(*BUCKETS)))
    with pytest.raises(SettingsError, match=r"/s3_jobs has no account at the S3 server: write aws_access_key_id"):
        buckets.check_roles(known)


@pytest.mark.parametrize("days", [0, 1])
def test_versions_are_kept_where_rules_remove_them(
    serve: Serve, settings: Any, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    monkeypatch.setenv("CHECKPOINT_VERSION_DAYS", str(days))
    server = VersionedServer(*BUCKETS)
    known = settings(serve(server))
    assert list(buckets.keep_versions(owner(known), known)) == []
    assert server.versioned == {"mlflow-artifacts", "datasets", "jobs", *(["ray"] if days else [])}
    assert len([query for query in server.requests if query.startswith("lifecycle")]) == 2 * len(BUCKETS)


def test_versions_exclude_what_is_written_every_few_seconds(serve: Serve, settings: Any) -> None:
    known, sent = settings(serve(VersionedServer(*BUCKETS))), []
    client = owner(known)
    client.meta.events.register("before-send.s3.PutBucketVersioning", lambda request, **_: sent.append(request))
    buckets.set_versioning(client, "ray", "Enabled", ["*/reports/", "*/result.json"])
    buckets.set_versioning(client, "ray", "Enabled")
    first, second = (request.body.decode() for request in sent)
    excluded = "<ExcludedPrefixes><Prefix>*/reports/</Prefix></ExcludedPrefixes>"
    assert f"<Status>Enabled</Status>{excluded}" in first
    assert "Excluded" not in second
    # The server checks what it gets, so that the sum is that of the body with the extension.
    sums = [base64.b64decode(request.headers["x-amz-checksum-crc32"]) for request in sent]
    assert sums == [zlib.crc32(body.encode()).to_bytes(4, "big") for body in (first, second)]


def test_silent_server_is_named_with_setting(closed_port: int, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)  # between its five attempts
    address = f"http://127.0.0.1:{closed_port}"
    known = settings(address)
    with pytest.raises(SettingsError, match=rf"The S3 server at {address} does not answer .*S3_ENDPOINT_URL"):
        buckets.make_buckets(owner(known), known)


def test_backup_reads_server_without_versions(serve: Serve, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("ray")
    client = owner(settings(serve(server)))
    get = client.get_object
    # A header that the small server does not send.
    monkeypatch.setattr(client, "get_object", lambda **address: {**get(**address), "ETag": "1"})
    for key in ("a/checkpoint", "b"):
        client.put_object(Bucket="ray", Key=key, Body=b"")
    assert not objects.keeps_versions(client, "ray")
    found = objects.opened(client, "ray", objects.as_they_are(client, "ray"))
    assert {version.key: content.read().decode() for version, content, _ in found} == {
        "a/checkpoint": "a/checkpoint",
        "b": "b",
    }


def test_restore_empties_bucket_without_versions(serve: Serve, settings: Any) -> None:
    server = Server("ray")
    server.keys["ray"] = {"old"}
    objects.empty(owner(settings(serve(server))), "ray")
    assert server.keys == {"ray": set()}
