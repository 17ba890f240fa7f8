"""The stack on a host, and its jobs, whose variables name a proxy that answers nothing of ours."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import urlsplit

from host import Stack, run

from mlplatform.client.jobs import Jobs

NOWHERE = "http://proxy.corp.example:3128"
"""A proxy whose name nobody knows."""

PROBE = """
import os, subprocess
import boto3, mlflow, requests
from ray.job_submission import JobSubmissionClient
assert os.environ["HTTP_PROXY"] == os.environ["https_proxy"] == "http://proxy.corp.example:3128", "not behind the proxy"
assert "registry.corp.example" in os.environ["no_proxy"]
mlflow.search_experiments()
boto3.client("s3").list_objects_v2(Bucket="ray")
JobSubmissionClient().list_jobs()
subprocess.run(["curl", "--fail", "--silent", "--output", "/dev/null", "http://prometheus:9090/-/healthy"])
subprocess.run(["mlplatform", "jobs", "list"], check=True, stdout=subprocess.DEVNULL)
try:
    requests.get("http://hub.example.org", timeout=5)
except requests.exceptions.ProxyError:
    print("reached everything of the stack, and others through the proxy only")
"""

TRACKED = """
import os
import mlflow, ray
with mlflow.start_run():
    mlflow.log_metric("loss", 1)
    mlflow.log_text("seen", "seen.txt")
ray.init()
print("hosts of a task", ray.get(ray.remote(lambda: os.environ["no_proxy"]).remote()))
"""


def test_containers_behind_proxy_of_docker_client_reach_the_stack(stack: Stack, tmp_path: Path) -> None:
    proxies = {"httpProxy": NOWHERE, "httpsProxy": NOWHERE, "noProxy": "intranet"}
    # An operator names another S3 server of the own network there.
    without_proxy = f"registry.corp.example,{urlsplit(stack.settings.s3_endpoint_url).hostname or 'localhost'}"
    (tmp_path / "config.json").write_text(json.dumps({"proxies": {"default": proxies}}))
    command = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "notebook", "-c", PROBE)
    variables = {**os.environ, "DOCKER_CONFIG": str(tmp_path), "NO_PROXY": without_proxy}
    done = run("platform/compose.sh", *command, cwd=stack.root, env=variables)
    assert "reached everything of the stack" in done.stdout


def test_job_with_proxy_in_its_variables_is_tracked(stack: Stack, jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRACKED)
    variables = {"HTTP_PROXY": NOWHERE, "https_proxy": NOWHERE, "ALL_PROXY": NOWHERE, "NO_PROXY": "hub.corp.example"}
    job_id = jobs.submit("python train.py", working_dir=tmp_path, env=variables)
    assert jobs.wait(job_id, 120).status == "SUCCEEDED", jobs.logs(job_id)
    assert "hub.corp.example" in jobs.logs(job_id)
    (tracked,) = stack.runs_of(job_id)
    assert tracked["info"]["status"] == "FINISHED"
