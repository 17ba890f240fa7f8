"""Warm start on the stack, whose workers run as a user without privileges."""

from __future__ import annotations

import json
import os
from pathlib import Path

from host import Stack, run, wait_for

from mlplatform.client.jobs import Jobs
from mlplatform_warm import notes

FIT = """
import logging, os, sys
loaded = sorted({"torch", "lightning", "mlflow", "ray"} & set(sys.modules))
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
import ray.train

def train(config):
    ray.train.report({"x": 1})

print("loaded", loaded)
logging.getLogger("of.a.program").warning("warned")
TorchTrainer(
    train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path="s3://ray/warm-start")
).fit()
"""


EDITED = "/opt/venv/lib/python3.13/site-packages/colorful/__init__.py"
"""Imported by each template."""

START = """
log=$(mktemp)
MLPLATFORM_WARM_SOCKETS=/tmp/warm MLPLATFORM_WARM_LOG=$log /tmp/warm/bin/python -c '' </dev/null
cat $log
"""


def test_fit_on_stack_starts_warm(stack: Stack, jobs: Jobs, tmp_path: Path) -> None:
    def ready() -> bool:
        socket = ("test", "-S", "/tmp/warm/driver.sock")
        return all(stack.execute(f"ray-worker-{number}", *socket, check=False).returncode == 0 for number in range(2))

    wait_for(ready, "the templates of both workers")
    (tmp_path / "fit.py").write_text(FIT)
    job_id = jobs.submit(["python", "fit.py"], tmp_path)
    log = "\n".join(jobs.follow(job_id))
    assert jobs.get(job_id).status == "SUCCEEDED", log
    assert "loaded ['lightning', 'mlflow', 'ray', 'torch']" in log
    # A package that the template imports must not configure the root logger for programs.
    assert "\nwarned" in log
    assert notes.WARM in log.splitlines()
    # A worker on which nothing has started yet has no file.
    starts = ("cat", "/tmp/warm/starts.jsonl")
    lines = [
        json.loads(line)
        for number in range(2)
        for line in stack.execute(f"ray-worker-{number}", *starts, check=False).stdout.splitlines()
    ]
    reasons = [line["cold"] for line in lines if line["job"] == job_id]
    # The driver, the supervisor, Ray Train's controller and its other actors, and two train workers.
    assert len(reasons) > 5
    assert set(reasons) == {None}


def test_stack_starts_cold_when_setting_is_off(stack: Stack) -> None:
    """The setting reaches the workers; that the variable turns warm start off is shown by the embedded tests."""
    for value in ("1", "0"):
        config = json.loads(stack.compose("config", "--format=json", env={**os.environ, "WARM_START": value}).stdout)
        assert config["services"]["ray-worker-0"]["environment"]["MLPLATFORM_WARM_START"] == value


def test_file_edited_in_container_is_noticed(stack: Stack) -> None:
    """The image's file system is an overlay: the first write moves the file to another layer."""
    as_root = ("docker", "exec", "--user", "root", stack.container("ray-worker-0"))

    def reason() -> str:
        return str(json.loads(stack.execute("ray-worker-0", "sh", "-c", START).stdout)["cold"])

    wait_for(lambda: "not running" not in reason(), "the templates")
    assert "has changed" not in reason()
    run(*as_root, "cp", "--preserve", EDITED, f"{EDITED}.kept")
    run(*as_root, "sh", "-c", f"echo >>{EDITED}")
    try:
        assert reason() == f"{EDITED} has changed since it was imported"
    finally:
        run(*as_root, "mv", f"{EDITED}.kept", EDITED)
