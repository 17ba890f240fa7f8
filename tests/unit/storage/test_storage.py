import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import pytest
from command_line import Serve

from mlplatform.errors import AccessError, SettingsError, StorageError, UnreachableError
from mlplatform.storage import addresses, objects, s3, upload
from mlplatform.storage.objects import S3Store

REFUSAL = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"


@pytest.fixture
def s3_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A credentials file, as in containers."""
    credentials = tmp_path / "aws"
    credentials.write_text("[default]\naws_access_key_id = someone\naws_secret_access_key = something\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.mark.parametrize(
    ("root", "name", "expected"),
    [
        ("s3://ray", "fit", "s3://ray/digits-1/fit"),
        ("s3://ray/team/", "fit", "s3://ray/team/digits-1/fit"),
        ("/data", "", "/data/digits-1"),
    ],
)
def test_checkpoint_path_contains_job_id(root: str, name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_STORAGE", root)
    monkeypatch.setenv("MLPLATFORM_JOB_ID", "digits-1")
    assert addresses.checkpoint_uri(name) == expected


def test_process_outside_jobs_has_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_STORAGE", "/data")
    monkeypatch.setenv("MLPLATFORM_USER", "ada")
    assert addresses.checkpoint_uri("a").startswith("/data/ada-")
    assert addresses.checkpoint_uri("a").removesuffix("/a") == addresses.checkpoint_uri("b").removesuffix("/b")


@pytest.mark.parametrize("root", ["data", "s3://", "gs://bucket", "./data"])
def test_other_storage_schemes_are_rejected(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_STORAGE", root)
    with pytest.raises(SettingsError, match=r"MLPLATFORM_STORAGE='.*' is neither"):
        addresses.checkpoint_uri()


def test_writable_check_creates_folder_and_leaves_it_empty(tmp_path: Path) -> None:
    objects.check_writable(str(tmp_path / "new"))
    assert (tmp_path / "new").is_dir()
    assert objects.list_files(str(tmp_path / "new")) == []


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/below cannot be written .*MLPLATFORM_STORAGE"):
        objects.check_writable(str(tmp_path / "file" / "below"))


def test_files_are_listed_recursively(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "model").touch()
    assert objects.list_files(str(tmp_path)) == [str(tmp_path / "a" / "b" / "model")]


@pytest.mark.usefixtures("s3_key")
def test_checkpoint_upload_follows_linked_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    sent: list[str] = []
    monkeypatch.setenv("AWS_ENDPOINT_URL", serve(lambda method, path: (200, sent.append(path) or "")))
    for name in ("checkpoint", "disk"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.pt").write_bytes(b"weights")
    (tmp_path / "checkpoint" / "linked").symlink_to(tmp_path / "disk")
    upload.upload(tmp_path / "checkpoint", "s3://ray/x")
    assert sorted(path.partition("?")[0] for path in sent) == ["/ray/x/checkpoint.pt", "/ray/x/linked/disk.pt"]


@pytest.mark.usefixtures("s3_key")
def test_unreachable_server_is_named(monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    with pytest.raises(UnreachableError, match=rf"http://127.0.0.1:{closed_port} does not answer"):
        objects.check_writable("s3://ray/x")


@pytest.mark.usefixtures("s3_key")
@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "InvalidAccessKeyId", AccessError),
        (404, "NoSuchBucket", StorageError),
        (400, "Odd", StorageError),
        (507, "XMinioStorageFull", UnreachableError),
        (507, "InsufficientStorage", UnreachableError),
    ],
)
def test_server_rejection_gives_one_sentence_error(
    status: int, code: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", serve(lambda method, path: (status, REFUSAL.format(code=code))))
    with pytest.raises(kind) as error:
        objects.check_writable("s3://ray/x")
    assert "s3://ray/x" in str(error.value)
    assert "\n" not in str(error.value)
    assert (status == 507) == ("the disk of the storage" in str(error.value))


@pytest.mark.usefixtures("s3_key")
@pytest.mark.parametrize("code", ["VersioningNotConfigured", "NotImplemented", "MethodNotAllowed"])
def test_server_without_versions_has_no_former_ones(code: str, monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", serve(lambda method, path: (501, REFUSAL.format(code=code))))
    assert S3Store("s3://ray").former() == []


@pytest.mark.usefixtures("s3_key")
def test_server_of_the_profile_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    config = tmp_path / "config"
    config.write_text(f"[default]\nendpoint_url = http://127.0.0.1:{closed_port}\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with pytest.raises(UnreachableError, match=rf"http://127.0.0.1:{closed_port} does not answer"):
        objects.check_writable("s3://ray/x")


def test_missing_credentials_differ_from_wrong_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed_port: int
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AccessError, match="There are no credentials for s3://ray"):
        objects.check_writable("s3://ray/x")


@pytest.mark.usefixtures("s3_key")
def test_variables_of_another_cloud_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    foreign = {"AWS_PROFILE": "work", "AWS_ACCESS_KEY_ID": "theirs", "AWS_SECRET_ACCESS_KEY": "x"}
    region = {"AWS_DEFAULT_REGION": "eu-north-1", "AWS_ENDPOINT_URL_S3": "https://r2.example.org"}
    for name, value in (foreign | region).items():
        monkeypatch.setenv(name, value)
    client = s3.s3_client()
    assert (client.meta.endpoint_url, client.meta.region_name) == ("http://127.0.0.1:9000", "us-east-1")
    signed = client.generate_presigned_url("get_object", {"Bucket": "ray", "Key": "a"})
    assert "someone" in signed, "the platform's account"


def test_missing_profile_is_not_blamed_on_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "work")
    with pytest.raises(SettingsError, match=r"AWS_PROFILE is for other files .*\(work\)"):
        objects.check_writable("s3://ray/x")


@pytest.mark.usefixtures("s3_key")
def test_concurrent_threads_share_one_connection(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", serve(lambda method, path: (200, "")))
    made = []
    connect = boto3.session.Session.client
    monkeypatch.setattr(
        boto3.session.Session, "client", lambda *args, **options: made.append(1) or connect(*args, **options)
    )
    store, together = S3Store("s3://jobs/logs"), threading.Barrier(8)

    def write(number: int) -> None:
        together.wait()
        store.write(str(number), "text")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert len(made) == 1


@pytest.mark.usefixtures("s3_key")
@pytest.mark.parametrize("uri", ["s3://ray", "s3://ray/", "s3://ray/team/job", "/data/job"])
def test_arrow_filesystem_path_equals_pyarrows(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow.fs import FileSystem, S3FileSystem

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    (theirs, their_path), (ours, our_path) = FileSystem.from_uri(uri), s3.arrow_filesystem(uri)
    assert our_path == their_path.rstrip("/")
    assert ours.type_name == theirs.type_name
    if isinstance(ours, S3FileSystem):
        assert ours.region == "us-east-1", "MinIO would reject requests signed for another region"


def test_unusable_folder_error_names_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = objects.open_store(str(tmp_path / "file"), "MLPLATFORM_DATASETS")
    for use in (lambda: store.write("a", "b"), lambda: store.read("a"), lambda: store.delete("a")):
        with pytest.raises(StorageError, match=r"file/a cannot be .* check the folder or MLPLATFORM_DATASETS"):
            use()
