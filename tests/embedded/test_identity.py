"""Runs record their job, commit and uncommitted changes, however the job was submitted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from embedded import completed, job_run, succeeded
from waiting import wait_for

from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings
from mlplatform.tracking import server, system_metrics

TRACKED = "import mlplatform\nwith mlplatform.job_run(experiment='identity'):\n    pass\n"


@pytest.fixture
def dirty(tmp_path: Path) -> tuple[Path, str]:
    """A repository with a change, an untracked file and an ignored one; and its commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for name, text in (("old.py", "one"), (".gitignore", "*.pt\n")):
        (folder / name).write_text(text)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=one"]):
        subprocess.run([*git, *words], check=True)
    (folder / "old.py").write_text("two")
    (folder / "new.py").write_text(TRACKED)
    (folder / "weights.pt").write_text("not code")
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return folder, head.stdout.strip()


@pytest.mark.usefixtures("environment")
def test_run_records_commit_changes_and_output_of_gpu_tool(
    dirty: tuple[Path, str], reached: Settings, tmp_path: Path
) -> None:
    from mlflow import artifacts

    folder, commit = dirty
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'table of this node'\n")
    tool.chmod(0o755)
    with Jobs(reached) as jobs:
        job_id = jobs.submit("python new.py", folder, name="dirty", env={"PATH": f"{tmp_path}:${{PATH}}"})
        succeeded(jobs, job_id)
    found = job_run(job_id)
    assert found.info.status == "FINISHED"
    assert found.data.tags["mlflow.source.git.commit"] == commit
    assert found.data.tags["mlplatform.entrypoint"] == "python new.py"
    diff = artifacts.load_text(f"{found.info.artifact_uri}/git.diff")
    assert "-one" in diff
    assert "+++ b/new.py" in diff
    assert "weights.pt" not in diff
    assert artifacts.load_text(f"{found.info.artifact_uri}/gpu-info.txt") == "table of this node\n"


def test_tracking_server_of_job_takes_precedence(environment: Settings, tmp_path: Path) -> None:
    own = f"sqlite:///{tmp_path / 'own.db'}"
    by_call = f"import mlflow\nmlflow.set_tracking_uri({own!r})\n"
    for program, variables in (("", {"MLFLOW_TRACKING_URI": own}), (by_call, {})):
        env = {**os.environ, "MLPLATFORM_JOB_ID": "elsewhere", **variables}
        done = completed(sys.executable, "-c", program + TRACKED, env=env, cwd=tmp_path, timeout=120)
        assert done.returncode == 0, f"{program}: {done.stderr[-3000:]}"
    assert server.find_run("elsewhere") is None
    assert job_run("elsewhere", own).info.status == "FINISHED", "the second process did not rejoin the first one's run"


PAGE = "http://127.0.0.1:8000"

SHOWN = """
import mlflow, mlplatform
with mlflow.start_run() as run:
    pass
print(mlplatform.run_url(run))
"""


@pytest.mark.parametrize("platforms", [True, False])
def test_printed_links_name_page_of_runs_own_server(platforms: bool, environment: Settings, tmp_path: Path) -> None:
    assert environment.tracking_uri
    own = environment.tracking_uri if platforms else "http://mlflow:8000"
    variables = {"MLPLATFORM_TRACKING_URI": own, "MLPLATFORM_TRACKING_PAGE": PAGE, "MLPLATFORM_USER": "ada"}
    if not platforms:  # the plugin would send the platform's password to its own server only
        variables["MLFLOW_TRACKING_AUTH"] = ""
    command = [sys.executable, "-c", SHOWN]
    printed = subprocess.check_output(command, env={**os.environ, **variables}, cwd=tmp_path, text=True, timeout=120)
    view_run, view_experiment, run_url = printed.splitlines()
    run = server.existing_run(run_url.rpartition("/")[2])
    assert run
    page = f"{PAGE if platforms else environment.tracking_uri}/#/experiments/{run.info.experiment_id}"
    assert run_url == f"{page}/runs/{run.info.run_id}"
    assert view_run.endswith(f"at: {run_url}")
    assert view_experiment.endswith(f"at: {page}")
    assert run.data.tags["mlflow.user"] == "ada"


@pytest.mark.usefixtures("environment")
def test_each_node_logs_named_system_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    import mlflow

    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    with mlflow.start_run() as run, system_metrics.node_metrics(run.info.run_id):
        wanted = f"system/{socket.gethostname()}/cpu_utilization_percentage"
        wait_for(lambda: wanted in mlflow.get_run(run.info.run_id).data.metrics, "the node's metrics", seconds=30)
