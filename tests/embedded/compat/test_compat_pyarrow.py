"""Names, signatures and error texts of pyarrow outside its documented API."""

import inspect
from collections.abc import Callable

import pytest
from pyarrow.fs import AwsStandardS3RetryStrategy, FileSystemHandler, S3FileSystem

from mlplatform.compat.pyarrow import is_outage
from mlplatform.storage.filesystem import RetryingHandler

REFUSAL = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"


def files_at(address: str) -> S3FileSystem:
    account = {"access_key": "someone", "secret_key": "something", "region": "us-east-1"}
    return S3FileSystem(endpoint_override=address, retry_strategy=AwsStandardS3RetryStrategy(max_attempts=1), **account)


@pytest.mark.parametrize(
    ("status", "code", "outage"),
    [(503, "ServiceUnavailable", True), (403, "AccessDenied", False), (403, "SignatureDoesNotMatch", False)],
)
def test_server_errors_are_distinguished_from_rejections(
    status: int, code: str, outage: bool, serve: Callable[..., str]
) -> None:
    address = serve(lambda method, path: (status, REFUSAL.format(code=code)))
    files = files_at(address)
    # A multipart upload starts with a POST, whose response body contains the error code.
    with pytest.raises(OSError, match="AWS Error") as error:
        files.open_output_stream("ray/file")
    assert is_outage(error.value) is outage


def test_unreachable_server_counts_as_outage(closed_port: int) -> None:
    address = f"http://127.0.0.1:{closed_port}"
    files = files_at(address)
    with pytest.raises(OSError, match="AWS Error NETWORK_CONNECTION") as error:
        files.get_file_info("ray/file")
    assert is_outage(error.value)


def test_local_folder_error_does_not_count_as_outage() -> None:
    assert not is_outage(FileNotFoundError("no such file"))


def test_filesystem_handler_implements_every_method() -> None:
    for name in FileSystemHandler.__abstractmethods__:
        given, ours = (inspect.signature(getattr(kind, name)) for kind in (FileSystemHandler, RetryingHandler))
        assert len(ours.parameters) == len(given.parameters), name
