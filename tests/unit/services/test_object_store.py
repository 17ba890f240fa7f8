"""Buckets on another S3 server than MinIO, and backups of servers without versions, on a small local server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlplatform.errors import SettingsError
from mlplatform.services import object_store
from mlplatform.services.backup import objects
from mlplatform.settings.storage import BUCKETS, StorageSettings

Serve = Callable[[Callable[[str, str], tuple[int, str]]], str]

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
        if method == "PUT" and not key:
            self.keys[bucket] = set()
            return 200, ""
        if bucket not in self.keys:
            return 404, ERROR.format("NoSuchBucket")
        if "versioning" in path:
            return 501, ERROR.format("NotImplemented")
        if "versions" in path or "versionId" in path:
            return 400, ERROR.format("InvalidArgument")
        return 200, self._answer(method, bucket, key)

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


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], StorageSettings]:
    """Settings of a one-shot service that uses the server at an address."""
    account = tmp_path / "external_s3"
    account.write_text("[default]\naws_access_key_id = key\naws_secret_access_key = secret\n")
    monkeypatch.setenv("MLPLATFORM_S3_ACCOUNT", str(account))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")

    def load(address: str) -> StorageSettings:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        return StorageSettings.load()

    return load


def test_missing_buckets_are_created_and_probe_is_removed(serve: Serve, settings: Any) -> None:
    server = Server("ray")
    done, skipped = object_store.make_external_buckets(settings(serve(server)))
    assert server.keys == {bucket: set() for bucket in BUCKETS}
    assert "the buckets mlflow-artifacts, ray, datasets, jobs, teams exist" in done
    assert "accounts, policies, versions and quotas are left to its operator" in skipped


def test_existing_buckets_need_no_right_to_create(serve: Serve, settings: Any) -> None:
    server = Server(*BUCKETS)
    object_store.make_external_buckets(settings(serve(server)))
    assert server.keys == {bucket: set() for bucket in BUCKETS}


@pytest.mark.parametrize(("forbidden", "refused"), [("PUT", "CreateBucket"), ("GET", "ListObjectsV2")])
def test_refusal_names_buckets_and_rights(serve: Serve, settings: Any, forbidden: str, refused: str) -> None:
    refusal = rf"refuses {refused} for the bucket mlflow-artifacts \(AccessDenied\): create the buckets .*external_s3"
    with pytest.raises(SettingsError, match=refusal):
        object_store.make_external_buckets(settings(serve(Server(forbidden=forbidden))))


def test_silent_server_is_named_with_setting(closed_port: int, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)  # between its five attempts
    address = f"http://127.0.0.1:{closed_port}"
    with pytest.raises(SettingsError, match=rf"The S3 server at {address} does not answer .*S3_ENDPOINT_URL"):
        object_store.make_external_buckets(settings(address))


def test_backup_reads_server_without_versions(serve: Serve, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("ray")
    client = object_store.owner_client(settings(serve(server)))
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
    objects.empty(object_store.owner_client(settings(serve(server))), "ray")
    assert server.keys == {"ray": set()}
