import threading

import pytest

from mlplatform.storage import retry

OUTAGE = OSError("AWS Error NETWORK_CONNECTION")


@pytest.fixture(autouse=True)
def short_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_OUTAGE_SECONDS", 0.2)
    monkeypatch.setattr(retry, "_PAUSE_SECONDS", 0.01)


def test_call_longer_than_outage_is_retried() -> None:
    calls = 0

    def upload() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            threading.Event().wait(0.4)
            raise OUTAGE
        return "stored"

    assert retry.retry(upload) == "stored"
    assert calls == 2


def test_retries_end_with_longest_outage() -> None:
    calls = 0

    def upload() -> None:
        nonlocal calls
        calls += 1
        raise OUTAGE

    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        retry.retry(upload)
    assert calls > 2
