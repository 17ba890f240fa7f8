"""Advice on filling the model cache: printed once when a hub is unreachable, and never for other failures."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import hf_hub_download, snapshot_download

from mlplatform.text import advice
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
def test_unreachable_hub_error_gets_cache_advice(
    lack: Callable[[Path, int], None], tmp_path: Path, closed_port: int
) -> None:
    with pytest.raises(Exception) as failure:  # noqa: PT011 - each client has its own
        lack(tmp_path, closed_port)
    assert advice.advice_for(failure.value) == advice.MODEL_HUB
    assert "/shared/cache" in advice.MODEL_HUB
    assert "make data FROM=" in advice.MODEL_HUB


def test_error_text_from_worker_gets_advice_once() -> None:
    text = "ray.train.WorkerGroupError: rank 1:\nhuggingface_hub.errors.OfflineModeIsEnabled: Cannot reach it"
    assert advice.advice_for(RuntimeError(text)) == advice.MODEL_HUB
    assert advice.advice_in(f"{text}\n{advice.MODEL_HUB}") is None


def test_other_connection_errors_get_no_advice(closed_port: int) -> None:
    from urllib.request import urlopen

    with pytest.raises(OSError) as failure:  # noqa: PT011 - any other unavailable server
        urlopen(f"http://127.0.0.1:{closed_port}")
    assert advice.advice_for(failure.value) is None


def test_job_failing_on_hub_prints_advice_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import mlflow

    monkeypatch.chdir(tmp_path)  # the run's artifacts go there
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    try:
        with pytest.raises(FileNotFoundError), run.job_run():
            _lack_file(tmp_path, 0)
    finally:
        mlflow.set_tracking_uri(None)
    assert capsys.readouterr().err.count(advice.MODEL_HUB) == 1


def _missing_module(folder: Path) -> None:
    __import__("no_such_module_anywhere")


def _missing_library(folder: Path) -> None:
    ctypes.CDLL("libnone-such.so.1")


def _no_gpu(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    torch.zeros(1, device="cuda")


def _deleted_experiment(folder: Path) -> None:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    client.delete_experiment(deleted := client.create_experiment("old"))
    client.create_run(deleted)


def _same_experiment(folder: Path) -> None:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    for _ in range(2):
        client.create_experiment("twice")


def _full_disk(folder: Path) -> None:
    with Path("/dev/full").open("w") as file:
        file.write("x" * 100_000)


@pytest.mark.parametrize(
    ("fail", "cure"),
    [
        (_missing_module, "--pip"),
        (_no_gpu, "--gpus 1"),
        (_deleted_experiment, "mlflow experiments restore"),
        (_same_experiment, "mlflow.set_experiment"),
        (_full_disk, "make prune"),
        (_missing_library, "packages.txt"),
    ],
)
def test_common_errors_get_their_cure(fail: Callable[[Path], None], cure: str, tmp_path: Path) -> None:
    with pytest.raises(Exception) as failure:  # noqa: PT011 - each has its own
        fail(tmp_path)
    assert cure in (advice.advice_for(failure.value) or "")


def test_error_long_before_the_end_gets_no_advice() -> None:
    text = "ModuleNotFoundError: No module named 'optional'\n"
    assert advice.advice_in(text)
    assert advice.advice_in(text + "step\n" * 5000 + "ValueError: the data is missing") is None
