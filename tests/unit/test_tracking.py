import signal
from collections.abc import Callable

import pytest

from mlplatform import tracking
from mlplatform.errors import AccessError, UnreachableError


def test_without_an_address_a_job_runs_untracked_and_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    tracking._say_untracked.cache_clear()
    with tracking.job_run(params={"lr": 1}) as run:
        assert run is None
        assert tracking.process_run() is None
    said = capsys.readouterr().err
    assert said.strip() == tracking.NOT_TRACKED
    assert "MLFLOW_TRACKING_URI" in said


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(128 + signal.SIGTERM), "KILLED"),
        (SystemExit(int(signal.SIGTERM)), "KILLED"),
        (SystemExit(0), "FINISHED"),
        (SystemExit(None), "FINISHED"),
        (SystemExit("no data"), "FAILED"),
        (ValueError("no data"), "FAILED"),
    ],
)
def test_how_a_run_ends_follows_from_what_ended_its_job(error: BaseException, status: str) -> None:
    assert tracking._status_after(error) == status


def test_a_silent_server_is_named_at_once(closed_port: int) -> None:
    address = f"http://127.0.0.1:{closed_port}"
    with pytest.raises(UnreachableError, match=f"MLflow at {address} .* does not answer"):
        tracking.check(address)


@pytest.mark.parametrize(("status", "kind"), [(401, AccessError), (403, AccessError), (404, UnreachableError)])
def test_a_refusal_is_told_from_a_wrong_address(status: int, kind: type[Exception], serve: Callable[..., str]) -> None:
    address = serve(lambda method, path: (status, "no"))
    with pytest.raises(kind, match=str(status)):
        tracking.check(address)


def test_a_store_that_is_no_server_needs_no_check() -> None:
    tracking.check("sqlite:///runs.db")
