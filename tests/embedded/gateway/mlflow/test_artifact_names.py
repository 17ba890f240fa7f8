"""Names of artifacts arrive as they are, or are refused with a sentence, on a real server and with real clients."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import mlflow
import pytest
from guarded_mlflow import FILES, Server
from mlflow.exceptions import MlflowException

ODD = [
    "run#2 loss.csv",
    "why?.txt",
    "a%2Fb.txt",
    "75%41.txt",
    "%2E%2e",
    "%23%3f;x=1&y",
    " led by and followed by spaces ",
    "Grüße 模型 🎉.txt",
    "e\u0301.txt",
    "\u00e9.txt",
    "Case.txt",
    "case.txt",
    "back\\slash",
    'it\'s "quoted".txt',
    "..dots..",
    "~",
    "C:",
    "n" * 251 + ".txt",
]
REFUSED = ["line\nbreak.txt", "tab\tbed.txt", "\x01.bin", "back\\..\\slash", os.fsdecode(b"latin-\xe4.txt")]

pytestmark = pytest.mark.usefixtures("as_person")


@pytest.fixture
def run_id() -> Iterator[str]:
    mlflow.set_experiment("names")
    with mlflow.start_run(log_system_metrics=False) as run:
        yield run.info.run_id


@pytest.mark.parametrize("folder", [None, "plots #1/100%25?"])
def test_every_name_arrives_unchanged(run_id: str, folder: str | None, tmp_path: Path) -> None:
    for number, name in enumerate(ODD):
        (tmp_path / "here").mkdir(exist_ok=True)
        (tmp_path / "here" / name).write_text(f"{number} {name}")
    mlflow.log_artifacts(str(tmp_path / "here"), folder)
    listed = mlflow.artifacts.list_artifacts(run_id=run_id, artifact_path=folder)
    expected = {f"{folder}/{name}" if folder else name for name in ODD}
    assert {item.path for item in listed} == expected
    for number, name in enumerate(ODD):
        path = f"{folder}/{name}" if folder else name
        got = mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path=path, dst_path=str(tmp_path / "one"))
        assert Path(got) == tmp_path / "one" / name
        assert Path(got).read_text() == f"{number} {name}"
    whole = Path(mlflow.artifacts.download_artifacts(run_id=run_id, dst_path=str(tmp_path / "all")))
    assert {file.relative_to(whole).as_posix() for file in whole.rglob("*") if file.is_file()} == expected


def test_each_way_to_log_keeps_name(run_id: str, server: Server, tmp_path: Path) -> None:
    for name in ("größe #1.json", "50%25/?.json"):
        mlflow.log_dict({"name": name}, name)
        assert mlflow.artifacts.load_dict(f"runs:/{run_id}/{name}") == {"name": name}
        assert mlflow.artifacts.load_dict(f"{mlflow.get_artifact_uri()}/{name}") == {"name": name}
        mlflow.log_text(name, f"text/{name}")
        page = server.send("person", "GET", f"/get-artifact?run_uuid={run_id}&path={quote(f'text/{name}')}")
        assert page.text == name, "as MLflow's page requests it"
        mlflow.log_table({"a": ["ü"]}, f"tables/{name}")
        assert mlflow.load_table(f"tables/{name}", run_ids=[run_id]).a.tolist() == ["ü"]
    mlflow.MlflowClient()._tracking_client._get_artifact_repo(run_id).delete_artifacts("text/größe #1.json")
    left = mlflow.artifacts.list_artifacts(run_id=run_id, artifact_path="text")
    assert [item.path for item in left] == ["text/50%25"]


@pytest.mark.parametrize("name", REFUSED)
def test_name_that_cannot_be_stored_is_refused_before_any_upload(run_id: str, name: str, tmp_path: Path) -> None:
    for file in ("a.txt", name):
        (tmp_path / file).write_text("x")
    for log in (lambda: mlflow.log_artifact(str(tmp_path / name)), lambda: mlflow.log_artifacts(str(tmp_path))):
        with pytest.raises(MlflowException, match=r"Invalid path: the artifact name .*; (rename|use)"):
            log()
    assert mlflow.artifacts.list_artifacts(run_id=run_id) == []


def test_server_refuses_what_other_clients_do_not_quote(server: Server, run_id: str) -> None:
    root = mlflow.get_artifact_uri().removeprefix("mlflow-artifacts:")
    for prefix in (FILES, FILES.replace("/api", "/ajax-api")):
        for name in ("a?b.txt", "a%2fb.txt", "%01", "%ff", "x" * 300, "..%5c..%5cx"):
            answer = server.send("person", "PUT", f"{prefix}{root}/{name}", content=b"x")
            assert answer.status_code == 400, (name, answer.text)
            assert "Invalid path: the artifact name" in answer.text
    for name in ("%2e%2e/up", "%252e%252e%252fkept"):
        server.send("person", "PUT", f"{FILES}{root}/{name}", content=b"x")
    assert [item.path for item in mlflow.artifacts.list_artifacts(run_id=run_id)] == ["%2e%2e%2fkept"]


def test_folder_arrives_whole_or_is_named(run_id: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, other = tmp_path / "out", tmp_path / "elsewhere"
    for file in (folder / "logs" / "logs", other / "deep" / "weights.bin"):
        file.parent.mkdir(parents=True)
        file.write_text(file.name)
    (folder / "linked").symlink_to(other)
    (folder / "back").symlink_to(folder)
    (folder / "gone").symlink_to(tmp_path / "nothing")
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "s"))
    mlflow.log_artifacts(str(folder))
    got = Path(mlflow.artifacts.download_artifacts(run_id=run_id, dst_path=str(tmp_path / "got")))
    found = {file.relative_to(got).as_posix(): file.read_text() for file in got.rglob("*") if file.is_file()}
    assert found == {"logs/logs": "logs", "linked/deep/weights.bin": "weights.bin"}
    printed = capfd.readouterr().err
    assert printed.count("Not logged from") == 1
    assert "'empty' (an empty folder)" in printed


@pytest.mark.parametrize("switch", ["true", "false"])
def test_large_file_passes_with_multipart_switches(
    switch: str, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for way in ("UPLOAD", "DOWNLOAD"):
        monkeypatch.setenv(f"MLFLOW_ENABLE_PROXY_MULTIPART_{way}", switch)
        monkeypatch.setenv(f"MLFLOW_MULTIPART_{way}_MINIMUM_FILE_SIZE", str(5 << 20))
    (tmp_path / "weights #1.bin").write_bytes(content := os.urandom(11 << 20))
    mlflow.log_artifact(str(tmp_path / "weights #1.bin"), "a/b")
    got = mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path="a/b/weights #1.bin")
    assert Path(got).read_bytes() == content
