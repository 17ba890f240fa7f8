"""Models with a real MLflow: checksums, lineage and promotion webhooks."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from embedded import SCRIPTS, completed
from typer.testing import CliRunner
from waiting import wait_for

from mlplatform.cli.app import app
from mlplatform.client.connection import Connection
from mlplatform.errors import RegistryError, StorageError
from mlplatform.files import checksums
from mlplatform.registry import datasets, lineage, lookup, model_files, models
from mlplatform.settings.job import Settings
from mlplatform.tracking import server

TRAINS_ON_DATA = """
import sys, time, mlflow, mlplatform
if sys.argv[1] == "outside":
    from mlplatform.registry import datasets
    datasets.put("iris.csv", "petals")
    mlplatform.dataset("petals")
    raise SystemExit
with mlplatform.job_run(experiment="petals") as run:
    mlplatform.dataset("petals")
    mlplatform.dataset("petals")
    mlflow.log_metric("loss", float(sys.argv[1]))
    path = run.info.artifact_uri
    with open("weights", "wb") as file:
        file.write(b"0" * 100_000)
    mlflow.log_artifact("weights", "model")
    mlflow.log_text("flavors: {}", "model/MLmodel")
    mlflow.log_text("flavors: {}", "model/data/part")
    version = mlplatform.register(f"runs:/{run.info.run_id}/model", "petals")
    assert mlplatform.register(f"runs:/{run.info.run_id}/model", "petals").version == version.version
    print(run.info.run_id, version.version)
from mlplatform.registry import model_files
deadline = time.monotonic() + 120
while isinstance(why := model_files.gateway_record(version), str):
    assert time.monotonic() < deadline, why
    time.sleep(0.2)
"""


@pytest.fixture(autouse=True)
def connected(environment: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def petals(reached: Settings, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Run ids of two jobs that used a data set and registered two versions of a small model."""
    folder = tmp_path_factory.mktemp("petals")
    (folder / "iris.csv").write_text("5.1,3.5,1.4,0.2\n")
    env = {**os.environ, **reached.environment(), "MLPLATFORM_GIT_COMMIT": "c0ffee"}

    def run(program: str, *arguments: str, **variables: str) -> str:
        done = completed(sys.executable, "-c", program, *arguments, env={**env, **variables}, cwd=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout or done.stderr

    assert "is not recorded, because no run is open" in run(TRAINS_ON_DATA, "outside")
    first = run(TRAINS_ON_DATA, "0.5", MLPLATFORM_JOB_ID="petals-1").split()
    second = run(TRAINS_ON_DATA, "0.7", MLPLATFORM_JOB_ID="petals-2").split()
    return first[0], second[0]


def lines_of(process: subprocess.Popen[str]) -> queue.Queue[str]:
    """Output of a process, line by line, so that waiting for a line can time out."""
    found: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout
        for line in process.stdout:
            found.put(line)

    threading.Thread(target=read, daemon=True).start()
    return found


def add_webhook(url: str, secret: str) -> Any:
    """A webhook for promotions, as docs/lessons.md says."""
    from mlflow import MlflowClient

    return MlflowClient().create_webhook("promotions", url, ["model_version_alias.created"], secret=secret)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Callable[[], dict[str, str]]]:
    """A webhook receiver for promotions; each call returns its next line of output."""
    from mlflow import MlflowClient

    (tmp_path / "secret").write_text("shared by both\n")
    command = [sys.executable, str(SCRIPTS / "receiver.py"), "0", "secret", str(tmp_path / "deployed")]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    lines = lines_of(process)
    try:
        port = lines.get(timeout=60).split()[-1]
        hook = add_webhook(f"http://127.0.0.1:{port}/", "shared by both")
        yield lambda: json.loads(lines.get(timeout=60))
        MlflowClient().delete_webhook(hook.webhook_id)
    finally:
        process.kill()
        process.wait()


def test_unsigned_webhook_delivery_is_rejected(receiver: Callable[[], dict[str, str]], petals: tuple[str, str]) -> None:
    from mlflow import MlflowClient

    registry = MlflowClient()
    (hook,) = registry.list_webhooks()
    other = add_webhook(hook.url, "another secret")
    try:
        assert registry.test_webhook(other.webhook_id).response_status == 403
    finally:
        registry.delete_webhook(other.webhook_id)
    assert "the signature is wrong" in receiver()["refused"]
    assert registry.test_webhook(hook.webhook_id).success
    models.promote("petals", 1, "champion")
    assert receiver()["model"] == "petals"
    assert [known.webhook_id for known in registry.list_webhooks()] == [hook.webhook_id]


def test_lineage_names_job_commit_and_data(petals: tuple[str, str]) -> None:
    models.promote("petals", 1, "first")
    data = datasets.find("petals")
    origin = lineage.describe("petals@first")
    assert origin["version"] == "1"
    assert origin["job"] == "petals-1"
    assert origin["commit"] == "c0ffee"
    assert origin["data"] == f"petals@{data.digest}"
    assert origin["run"].endswith(petals[0])
    assert "first" in origin["aliases"]
    (used,) = server.find_run("petals-1").inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("petals", data.digest)


def test_repeated_download_transfers_nothing(petals: tuple[str, str], tmp_path: Path) -> None:
    folder = models.download("petals/1", tmp_path / "model")
    subprocess.run(["sha256sum", "--check", "--strict", checksums.FILE], cwd=folder, check=True, capture_output=True)
    files = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert files == ["MLmodel", checksums.FILE, "part", "weights"]
    before = {path: path.stat().st_ino for path in folder.rglob("*")}
    assert models.download("models:/petals/1", folder) == folder
    assert {path: path.stat().st_ino for path in folder.rglob("*")} == before


def test_download_replaces_only_earlier_downloads(petals: tuple[str, str], tmp_path: Path) -> None:
    folder = models.download("petals/1", tmp_path / "model")
    (folder / "weights").write_bytes(b"edited")
    models.download("petals/2", folder)
    assert (folder / "weights").read_bytes() == b"0" * 100_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "notes").touch()
    with pytest.raises(StorageError, match="own holds other files"):
        models.download("petals/1", tmp_path / "own")
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["notes"]


def test_download_rejects_corrupt_stored_file(petals: tuple[str, str], reached: Settings, tmp_path: Path) -> None:
    (stored,) = (reached.home / "mlflow" / "artifacts").rglob(f"{petals[1]}/artifacts/model/weights")
    whole = stored.read_bytes()
    stored.write_bytes(b"1" + whole[1:])
    try:
        with pytest.raises(RegistryError, match="weights of petals version 2 does not have the checksum") as error:
            models.download("petals/2", tmp_path / "model")
    finally:
        stored.write_bytes(whole)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_tampered_checksums_are_noticed_without_a_record_and_else_ignored(
    petals: tuple[str, str], reached: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stored,) = (reached.home / "mlflow" / "artifacts").rglob(f"{petals[1]}/artifacts/model/{checksums.FILE}")
    whole = stored.read_text()
    stored.write_text(whole.replace(whole[:8], "00000000"))
    try:
        assert (models.download("petals/2", tmp_path / "model") / checksums.FILE).read_text() == whole
        monkeypatch.setattr(model_files, "gateway_record", lambda version: "there is no gateway.")
        with pytest.raises(RegistryError, match="checksums of petals version 2 are not the registered ones"):
            models.download("petals/2", tmp_path / "other")
    finally:
        stored.write_text(whole)


@pytest.mark.usefixtures("petals")
def test_unknown_alias_error_lists_existing_aliases(tmp_path: Path) -> None:
    models.promote("petals", 1, "first")
    named = r"^Model 'petals' has no alias 'best'; it has: .*first = version 1"
    with pytest.raises(RegistryError, match=named) as error:
        models.download("petals@best", tmp_path / "model")
    assert "\n" not in str(error.value)
    with pytest.raises(RegistryError, match=r"^There is no model 'petal'; there are: .*petals"):
        lookup.resolve("petal@best")
    with pytest.raises(RegistryError, match="'petals/9' cannot be looked up: "):
        lookup.resolve("petals/9")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: models.best_run("none", "accuracy"), "no experiment 'none'; there are: .*petals"),
        (lambda: models.best_run("petals", "accuracy"), "has a metric 'accuracy'"),
        (lambda: models.promote("petals", 99), "Version 99 of model 'petals' cannot become 'champion'"),
        (lambda: models.promote("none", 1), "Version 1 of model 'none'"),
        (lambda: models.download("petals", "out"), "neither name@alias nor name/version"),
        (lambda: models.register("models:/m-none", "half-made"), "models:/m-none cannot be registered"),
        (lambda: models.register("runs:/none/model", "half-made"), "runs:/none/model cannot be registered"),
    ],
)
@pytest.mark.usefixtures("petals")
def test_missing_entry_is_named(call: Callable[[], object], expected: str) -> None:
    with pytest.raises(RegistryError, match=expected) as error:
        call()
    assert "\n" not in str(error.value)
    assert "half-made" not in [name for name, _, _ in models.models()]


@pytest.mark.usefixtures("petals")
def test_promotion_compares_with_current_champion() -> None:
    models.promote("petals", 1, "guarded", metric="loss", mode="min")
    with pytest.raises(RegistryError, match=r"its loss of 0.7000 is worse than the 0.5000 of version 1"):
        models.promote("petals", 2, "guarded", metric="loss", mode="min")
    models.promote("petals", 2, "guarded", metric="loss", mode="max")
    assert lookup.resolve("petals@guarded").version in (2, "2")


@pytest.mark.usefixtures("petals")
def test_promotion_by_loss_requires_direction() -> None:
    for compare in (lambda: models.promote("petals", 1, metric="loss"), lambda: models.best_run("petals", "loss")):
        with pytest.raises(RegistryError, match="whether lower or higher is better for metric 'loss'; pass --mode min"):
            compare()


def test_champion_without_metric_is_not_replaced(petals: tuple[str, str]) -> None:
    import mlflow

    models.promote("petals", 1, "unmeasured")
    mlflow.MlflowClient().log_metric(petals[1], "recall", 0.5)
    with pytest.raises(RegistryError, match=r"Version 1 .* is 'unmeasured' now, has no number as its metric 'recall'"):
        models.promote("petals", 2, "unmeasured", metric="recall")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_model_with_nan_metric_is_not_promoted(petals: tuple[str, str], value: float) -> None:
    import mlflow

    mlflow.MlflowClient().log_metric(petals[1], "f1", value)
    with pytest.raises(RegistryError, match="has no number as its metric 'f1'"):
        models.promote("petals", 2, "guarded-by-f1", metric="f1")


def test_model_of_plain_mlflow_is_verified_once_recorded(
    reached: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    with mlflow.start_run() as run:
        mlflow.log_text("flavors: {}", "plain/MLmodel")
    version = mlflow.register_model(f"runs:/{run.info.run_id}/plain", "plain")
    model = f"plain/{version.version}"
    wait_for(lambda: models.verify(model) == "All 1 files are as the gateway has recorded them.", "the digests")
    with Connection(reached) as link:
        rows = link.call("GET", "/platform/audit", params={"limit": 100}).json()["entries"]
    made = {"verb": "POST", "object": "/api/2.0/mlflow/model-versions/create", "kind": "mlflow", "principal": "local"}
    assert any(made.items() <= row.items() and row["after"]["name"] == "plain" for row in rows), rows
    (stored,) = (reached.home / "mlflow" / "artifacts").rglob(f"{run.info.run_id}/artifacts/plain/MLmodel")
    stored.write_text("flavors: {evil}")
    for check in (lambda: models.verify(model), lambda: models.download(model, tmp_path / "changed")):
        with pytest.raises(RegistryError, match=f"The file MLmodel of plain version {version.version} does not have"):
            check()
    stored.unlink()
    with pytest.raises(RegistryError, match=f"The file MLmodel of plain version {version.version} is missing"):
        models.download(model, tmp_path / "changed")
    stored.write_text("flavors: {}")
    capsys.readouterr()
    monkeypatch.setattr(model_files, "gateway_record", lambda version: "there is no gateway.")
    folder = models.download(model, tmp_path / "model")
    assert (folder / "MLmodel").read_text() == "flavors: {}"
    said = capsys.readouterr().err
    assert "is not compared with the gateway's record: there is no gateway." in said
    assert "was registered without checksums" in said


def test_cli_shows_promotes_and_downloads_models(petals: tuple[str, str], tmp_path: Path) -> None:
    def run(*words: str) -> str:
        """Run the command in this process; a new one would take 4 s to import MLflow."""
        return CliRunner().invoke(app, ["models", *words], catch_exceptions=False).output

    assert run("promote", "petals/2", "--alias", "spoken") == "petals@spoken is version 2.\n"
    shown = run("show", "petals@spoken")
    assert "job      petals-2\n" in shown
    assert "files    All 3 files are as the gateway has recorded them.\n" in shown
    assert petals[0] in run("best", "petals", "loss", "--mode", "min")
    assert "petals" in run()
    command = [sys.executable, "-m", "mlplatform", "models", "download", "petals@spoken", str(tmp_path / "model")]
    fetched = subprocess.run(command, capture_output=True, text=True, check=True)
    assert fetched.stdout.strip() == str(tmp_path / "model")
    assert fetched.stderr == "", "a progress bar was printed without a terminal"
