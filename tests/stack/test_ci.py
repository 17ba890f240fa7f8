"""`make ci`: a job of a user's folder and a check, on a stack of its own that is gone afterwards."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from host import Stack, run

JOB = """
import mlflow
import mlplatform
from sklearn.linear_model import LogisticRegression

with mlplatform.job_run(experiment="ci"):
    mlflow.log_metric("accuracy", 0.75)
    mlflow.sklearn.log_model(
        LogisticRegression().fit([[0], [1]], [0, 1]),
        name="model",
        registered_model_name="from-ci",
        pip_requirements=["scikit-learn", "skops"],
    )
print("the job's last line")
"""

CHECK = """
import os
import pathlib
import mlflow

[run] = mlflow.search_runs(
    experiment_names=["ci"], filter_string=f"tags.`mlplatform.job_id` = '{os.environ['JOB_ID']}'", output_format="list"
)
assert (run.info.status, run.data.metrics) == ("FINISHED", {"accuracy": 0.75})
[version] = mlflow.MlflowClient().search_model_versions(f"run_id = '{run.info.run_id}'")
assert version.name == "from-ci"
model = pathlib.Path(mlflow.artifacts.download_artifacts(f"models:/from-ci/{version.version}"))
assert (model / "MLmodel").is_file()
pathlib.Path("checked").write_text(os.environ["JOB_ID"])
raise SystemExit(7)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's repository."""
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "train.py").write_text(JOB)
    (tmp_path / "check.py").write_text(CHECK)
    return tmp_path / "repository"


@pytest.fixture
def objects() -> Iterator[None]:
    """Containers, volumes and networks of Docker, of which none is added."""

    def names() -> set[str]:
        listings = (("ps", "--all"), ("volume", "ls"), ("network", "ls"))
        return {name for listing in listings for name in run("docker", *listing, "--quiet").stdout.split()}

    before = names()
    yield
    assert names() <= before


# The check fails after all of its assertions: one start of the stack shows its environment, its status and the removal.
# The other ends of a run are in tests/unit/stack/test_ci.py.
@pytest.mark.nightly
@pytest.mark.minio
def test_check_decides_status_and_nothing_remains(checkout: Stack, folder: Path, tmp_path: Path, objects: None) -> None:
    logs = tmp_path / "logs"
    check = shlex.join([sys.executable, str(tmp_path / "check.py")])
    started = time.monotonic()
    done = checkout.make("ci", f"JOB={folder} -- python train.py", f"CHECK={check}", f"LOGS={logs}", check=False)
    print(f"\nmake ci: {time.monotonic() - started:.0f} s\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    assert "The check exited with 7." in done.stdout, done.stderr[-3000:]
    assert done.returncode == 2, "make's own status of a failed recipe"
    assert "Error 7" in done.stderr
    job_id = (folder / "checked").read_text()
    assert f"Job {job_id} ended SUCCEEDED." in done.stdout
    assert "the job's last line" in (logs / "job.log").read_text()
    for service in ("ray-head", "ray-worker-0", "gateway", "mlflow"):
        assert (logs / f"{service}.log").stat().st_size, service
    assert not (checkout.root / ".ci-stack").exists()
