"""Whose clients get nothing from their hub is told how to fill the cache, once; who fails otherwise is not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import hf_hub_download, snapshot_download

from mlplatform import advice
from mlplatform.tracking import run

pytestmark = pytest.mark.usefixtures("clean_environment")


def _lack_file(folder: Path, port: int) -> None:
    hf_hub_download("gpt2", "config.json", cache_dir=folder, local_files_only=True)


def _lack_snapshot(folder: Path, port: int) -> None:
    snapshot_download("gpt2", cache_dir=folder, local_files_only=True)


def _lack_tokenizer(folder: Path, port: int) -> None:
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained("gpt2", cache_dir=folder, local_files_only=True)


def _lack_weights(folder: Path, port: int) -> None:
    torch.hub.load_state_dict_from_url(f"http://127.0.0.1:{port}/resnet18.pth", str(folder))


@pytest.mark.parametrize("lack", [_lack_file, _lack_snapshot, _lack_tokenizer, _lack_weights])
def test_a_hub_that_cannot_be_reached(lack: Callable[[Path, int], None], tmp_path: Path, closed_port: int) -> None:
    with pytest.raises(Exception) as failure:  # noqa: PT011 - each client has its own
        lack(tmp_path, closed_port)
    assert advice.advice_for(failure.value) == advice.ADVICE
    assert "/shared/cache" in advice.ADVICE
    assert "make cache" in advice.ADVICE


def test_what_came_from_a_worker_as_text() -> None:
    text = "ray.train.WorkerGroupError: rank 1:\nhuggingface_hub.errors.OfflineModeIsEnabled: Cannot reach it"
    assert advice.advice_for(RuntimeError(text)) == advice.ADVICE
    assert advice.advice_in(f"{text}\n{advice.ADVICE}") is None


def test_another_failure(closed_port: int) -> None:
    from urllib.request import urlopen

    with pytest.raises(OSError) as failure:  # noqa: PT011 - as any other server that is away
        urlopen(f"http://127.0.0.1:{closed_port}")
    assert advice.advice_for(failure.value) is None


def test_a_job_that_fails_for_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import mlflow

    monkeypatch.chdir(tmp_path)  # where the artifacts of such a run go
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    try:
        with pytest.raises(FileNotFoundError), run.job_run():
            _lack_file(tmp_path, 0)
    finally:
        mlflow.set_tracking_uri(None)
    assert capsys.readouterr().err.count(advice.ADVICE) == 1
