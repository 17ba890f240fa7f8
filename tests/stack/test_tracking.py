"""Plain `ray job submit` from the notebook: one run for two ranks, tagged with job, user, commit and changes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from host import ENV, SCRIPTS, Stack, Trained

from mlplatform.client.jobs import Jobs
from mlplatform.contract import TAG_ROLE

FOLDER = "/tmp/tracked"
GIT = "git -c user.name=a -c user.email=a@b"


@pytest.fixture(scope="module")
def folder(running: Stack) -> str:
    """A repository in the notebook with two scripts and one uncommitted line."""
    for name in ("autologged.py", "plain.py"):
        running.write("notebook", f"{FOLDER}/{name}", (SCRIPTS / name).read_text())
    commands = f"cd {FOLDER} && git init -q && git add . && {GIT} commit -qm one && echo '# changed' >>autologged.py"
    running.execute("notebook", "bash", "-c", commands)
    return FOLDER


def submit(stack: Stack, folder: str, command: str) -> Trained:
    typed = f"cd {folder} && ray job submit --working-dir . -- {command}"
    printed = stack.execute("notebook", "bash", "-c", typed).stdout
    return Trained(re.findall(r"raysubmit_\w+", printed)[0], printed)


@pytest.fixture(scope="module")
def ranks(running: Stack, folder: str) -> Trained:
    """Lightning's autologging on two ranks of Ray Train, whose driver opens no run."""
    return submit(running, folder, "python autologged.py --train")


@pytest.fixture
def the_run(stack: Stack, ranks: Trained) -> dict[str, Any]:
    (run,) = stack.runs_of(ranks.id)
    return run


def tags(run: dict[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run["data"]["tags"]}


def commit(stack: Stack, folder: str) -> str:
    return stack.execute("notebook", "git", "-C", folder, "rev-parse", "HEAD").stdout.strip()


def files(stack: Stack, run: dict[str, Any]) -> set[str]:
    answer = stack.mlflow.get("/artifacts/list", params={"run_id": run["info"]["run_id"]})
    return {file["path"] for file in answer.json()["files"]}


def test_two_ranks_share_one_run_from_rank_0(stack: Stack, the_run: dict[str, Any]) -> None:
    assert the_run["info"]["status"] == "FINISHED"
    params = {param["key"]: param["value"] for param in the_run["data"]["params"]}
    assert params["epochs"] == "2"
    assert params["lr"] == "0.1"
    metrics = {metric["key"]: metric["value"] for metric in the_run["data"]["metrics"]}
    assert metrics["after_fit"] == 0.0, "not the value of rank 0"
    assert "loss" in metrics
    assert {"model_summary.txt", "picture.png", "gpu-info.txt", "params.json", "git.diff"} <= files(stack, the_run)
    query = {"filter": f"run_id = '{the_run['info']['run_id']}'"}
    assert len(stack.mlflow.get("/model-versions/search", params=query).json()["model_versions"]) == 1


def test_other_rank_logs_to_temporary_folder(ranks: Trained) -> None:
    lines = ranks.log.count("rank 0 of 2 has logged to http://mlflow:8000")
    assert lines == 1, "a worker's line was printed more than once"
    assert "rank 1 of 2 has logged to file:///tmp/mlplatform-rank-" in ranks.log


@pytest.mark.nightly
def test_lightning_ddp_ranks_share_one_run(stack: Stack, folder: str) -> None:
    printed = stack.execute("notebook", "env", "MLPLATFORM_JOB_ID=own-ddp", "python", f"{folder}/autologged.py").stdout
    assert "rank 1 of 2 has logged to file:///tmp/mlplatform-rank-" in printed
    (run,) = stack.runs_of("own-ddp")
    assert run["info"]["status"] == "FINISHED"
    assert {"model_summary.txt", "gpu-info.txt"} <= files(stack, run)
    left = "ls -d /tmp/mlplatform-rank-* 2>/dev/null | wc -l"
    assert stack.execute("notebook", "sh", "-c", left).stdout == "0\n"


def test_run_records_user_entrypoint_and_commit(stack: Stack, folder: str, the_run: dict[str, Any]) -> None:
    run_tags = tags(the_run)
    assert run_tags["mlflow.user"] == ENV["NOTEBOOK_USER"]
    assert run_tags["mlplatform.entrypoint"] == "python autologged.py --train"
    assert run_tags["mlplatform.image"].startswith("mlplatform-ray:")
    assert run_tags["mlflow.source.git.commit"] == commit(stack, folder)
    download = "import mlflow, sys; print(mlflow.artifacts.load_text(sys.argv[1]))"
    uri = f"{the_run['info']['artifact_uri']}/git.diff"
    assert "+# changed" in stack.execute("notebook", "python", "-c", download, uri).stdout


def test_runs_of_plain_script_are_tagged_with_job(stack: Stack, jobs: Jobs, folder: str) -> None:
    job = submit(stack, folder, "python plain.py")
    started = re.findall(r"(?:driver|task)'s run (\w+)", job.log)
    runs = stack.runs_of(job.id)
    assert {run["info"]["run_id"] for run in runs} == set(started)
    assert len({run["info"]["experiment_id"] for run in runs}) == 2
    for run in runs:
        run_tags = tags(run)
        assert run_tags["mlplatform.node"].startswith(("ray-worker", "ray-head"))
        assert run_tags["mlplatform.attempt"] == "1"
        assert run_tags["mlflow.user"] == ENV["NOTEBOOK_USER"]
        assert run_tags["mlflow.source.git.commit"] == commit(stack, folder)
        assert TAG_ROLE not in run_tags, "a run that user code starts became the job's own run"
    assert jobs.get(job.id).user == ENV["NOTEBOOK_USER"]
