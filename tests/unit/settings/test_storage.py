"""Quotas of buckets are read from one setting."""

import pytest

from mlplatform.errors import SettingsError
from mlplatform.settings.services import quotas_of
from mlplatform_stack.settings import StorageSettings


def test_quotas_are_bytes_by_bucket() -> None:
    assert quotas_of("ray=500g, datasets=2TB") == {"ray": 500 * 2**30, "datasets": 2 * 2**40}
    assert quotas_of("") == {}


def test_invalid_quota_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKET_QUOTAS", "ray=1g,models=5g")
    with pytest.raises(SettingsError, match=r"'models=5g' is not a quota: write BUCKET=SIZE"):
        StorageSettings.load()
