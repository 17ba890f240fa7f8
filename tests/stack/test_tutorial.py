"""`make tutorial` on a local repository whose branches make the same calls as the tutorial's."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from urllib.parse import urlparse

import pytest
from host import CHECKOUT, Stack, run, wait_for

from mlplatform.client.jobs import Jobs

TUTORIAL = CHECKOUT / "tests/tutorial"
SCRIPTS = {
    "main": "train_main.py",
    "mlflow": "train_mlflow.py",
    "lightning": "train_lightning.py",
    "ray": "train_ray.py",
    "fault_tolerance": "train_ray.py",
    "tune": "train_tune.py",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tutorial") / "gourmetgram-train"
    folder.mkdir()
    git = ("git", "-C", str(folder), "-c", "user.name=test", "-c", "user.email=test@localhost")
    run(*git, "init", "--quiet")
    for branch, script in SCRIPTS.items():
        run(*git, "checkout", "--quiet", "-b", branch)
        shutil.copy(TUTORIAL / "branches" / script, folder / "train.py")
        run(*git, "add", "train.py")
        run(*git, "commit", "--quiet", "--allow-empty", "--message", branch)
    # Uncommitted changes in the checkout must not run.
    (folder / "train.py").write_text("raise SystemExit('changed')\n")
    return folder


@pytest.fixture(scope="module")
def weights(running: Stack, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A model cache with random weights, as a machine with access to the hub has it, copied by `make data`."""
    import torch
    from torchvision.models import MobileNet_V2_Weights, mobilenet_v2

    cache = tmp_path_factory.mktemp("cache")
    file = cache / "torch/hub/checkpoints" / Path(urlparse(MobileNet_V2_Weights.DEFAULT.url).path).name
    file.parent.mkdir(parents=True)
    torch.save(mobilenet_v2(weights=None).state_dict(), file)
    running.make("data", f"FROM={cache}")


@pytest.mark.usefixtures("weights")
def test_models_are_copied_to_caches_of_jobs_and_notebook(running: Stack) -> None:
    find = ("sh", "-c", "find $TORCH_HOME/hub/checkpoints -name 'mobilenet*' -printf '%f %s'")
    found = {service: running.execute(service, *find).stdout for service in ("ray-worker-0", "notebook")}
    assert found["notebook"]
    assert found["notebook"] == found["ray-worker-0"]


def typed(stack: Stack, source: Path, *branches: str) -> tuple[int, str]:
    """Run `make tutorial`'s program of this checkout on the stack under test."""
    command = [sys.executable, str(TUTORIAL / "tutorial.py"), str(source), "--root", str(stack.root)]
    variables = {"PYTHONPATH": str(CHECKOUT / "tests/stack"), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    done = run(*command, "--branches", *branches, env=variables, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("food11", "weights")
# Branch ray has the script of fault_tolerance.
@pytest.mark.parametrize("branch", [branch for branch in SCRIPTS if branch != "ray"])
@pytest.mark.nightly
def test_branch_runs_unmodified_with_tutorial_commands(stack: Stack, repository: Path, branch: str) -> None:
    code, printed = typed(stack, repository, branch)
    print(printed[-2000:])
    assert code == 0, printed[-4000:]
    assert re.search(r"[1-9]\d*\.\d GiB", printed), "no peak memory"
    if branch == "fault_tolerance":
        assert "--- docker stop" in printed
        assert "Resuming from ray/" in printed


@pytest.fixture
def unmodified(stack: Stack, food11: None, tmp_path: Path) -> Path:
    """Folder with the script of branch fault_tolerance; on workers that only declare a GPU, beside the CPU's shim."""
    shutil.copy(TUTORIAL / "branches/train_ray.py", tmp_path / "train.py")
    if stack.settings.accelerator == "cpu":
        shutil.copy(TUTORIAL / "cpu/sitecustomize.py", tmp_path)
    return tmp_path


def test_unmodified_script_resumes_after_stop_of_its_drivers_worker(stack: Stack, jobs: Jobs, unmodified: Path) -> None:
    job_id = jobs.submit("python train.py", unmodified, name="tutorial", env={"FOOD11_DATA_DIR": "/mnt/Food-11"})
    # Two checkpoints: Ray may be about to list the first one.
    wait_for(lambda: f"{job_id}/0/" in second_checkpoint(stack, job_id), "two checkpoints", 180)
    node = stack.ray.get(f"/platform/jobs/{job_id}").json()["attempts"][-1]["node"]
    run("docker", "stop", stack.container(node))
    try:
        resumed = wait_for(lambda: re.search(r"Resuming from (\S+)", jobs.logs(job_id)), "the training to resume", 180)
        assert resumed[1].startswith(f"ray/{job_id}/0/checkpoint_")
        assert [attempt.number for attempt in jobs.attempts(job_id)] == [1, 2]
    finally:
        jobs.stop(job_id)
        jobs.wait(job_id, timeout_s=60)
        run("docker", "start", stack.container(node))
        wait_for(lambda: len(stack.alive_nodes()) == 3, "the worker to be back", 120)


def second_checkpoint(stack: Stack, job_id: str) -> str:
    """An object of the job's second checkpoint; empty before it is stored."""
    folders = {key.rpartition("/")[0] for key in stack.objects("ray") if f"{job_id}/" in key and "/checkpoint_" in key}
    return max(folders) if len(folders) > 1 else ""


def test_checkout_without_branches_is_rejected(stack: Stack, tmp_path: Path) -> None:
    run("git", "-C", str(tmp_path), "init", "--quiet")
    code, printed = typed(stack, tmp_path, "ray", "tune")
    assert code != 0
    assert f"{tmp_path} has no branch ray, tune" in printed
    assert "Traceback" not in printed
