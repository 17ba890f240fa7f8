"""Private names of the W&B and Comet clients that the package uses."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest


def test_wandb_reports_whether_server_has_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.sdk import wandb_setup
    from wandb.sdk.lib import urls, wbauth

    from mlplatform.compat import trackers

    assert list(inspect.signature(wbauth.read_netrc_auth).parameters) == ["host"]
    assert list(inspect.signature(wbauth.session_credentials).parameters) == ["host"]
    assert urls.DEFAULT_BASE_URL.startswith("https://")
    assert {"settings_if_loaded", "did_environment_change"} <= set(dir(wandb_setup._WandbSetup))
    assert "_settings_environ" in inspect.getsource(wandb_setup._WandbSetup.did_environment_change)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not trackers.has_wandb_key("https://wandb.example.org")
    (tmp_path / "netrc").write_text(f"machine wandb.example.org login user password {'0' * 40}\n")
    assert trackers.has_wandb_key("https://wandb.example.org")
    assert not trackers.has_wandb_key(None)


def test_comet_reports_whether_key_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("comet_ml")
    from mlplatform.compat import trackers

    monkeypatch.delenv("COMET_API_KEY", raising=False)
    monkeypatch.setenv("COMET_CONFIG", str(tmp_path / "comet.config"))
    assert not trackers.has_comet_key()
    monkeypatch.setenv("COMET_API_KEY", "0" * 40)
    assert trackers.has_comet_key()
