"""GPUs of a stack that runs on this machine: workers, notebook, exporter, shared GPUs, `mlplatform top`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gpu_host import needs
from gpu_jobs import holding_gpu, seconds
from host import Stack, run, wait_for

from mlplatform.api.jobs import Job
from mlplatform.capacity.resources import Resources
from mlplatform.client.jobs import Jobs
from mlplatform.settings.environment import environment
from mlplatform_stack.env import client_settings

pytestmark = needs(1)

Record = Callable[[str, object], None]

SCRIPTS = Path(__file__).parent / "scripts"
GIB = 1 << 30

# A worker's GPUs, each by an id that no other has; both tools are in the images.
TOOLS = {
    "cuda": (["nvidia-smi", "--list-gpus"], r"UUID: ([^)]+)"),
    "rocm": (["rocm-smi", "--showuniqueid"], r"Unique ID: (\S+)"),
}


def gpus_of(stack: Stack) -> list[dict[str, Any]]:
    """GPUs of the workers, as the gateway reports them; those that are only declared have no name."""
    return stack.ray.get("/platform/utilisation").raise_for_status().json()["gpus"]


# --- What a stack has ---


@needs(2)
def test_head_and_two_workers_have_a_gpu_each(two_workers: Stack, record_property: Record) -> None:
    assert wait_for(two_workers.whole, "ray-head, ray-worker-0 and ray-worker-1", 30)
    found = wait_for(lambda: [gpu for gpu in gpus_of(two_workers) if gpu["name"]], "a measured GPU", 60)
    assert sorted(gpu["node"] for gpu in found) == ["ray-worker-0", "ray-worker-1"]
    for gpu in found:
        record_property(gpu["node"], gpu["name"])


@needs(2)
def test_each_worker_lists_one_different_gpu(two_workers: Stack, record_property: Record) -> None:
    tool, pattern = TOOLS[two_workers.settings.accelerator]
    ids = {}
    for worker in ("ray-worker-0", "ray-worker-1"):
        printed = two_workers.execute(worker, *tool).stdout
        ids[worker] = re.findall(pattern, printed)
        assert len(ids[worker]) == 1, f"{worker} lists {len(ids[worker])} GPUs:\n{printed}"
        record_property(worker, ids[worker][0])
    assert ids["ray-worker-0"] != ids["ray-worker-1"]


def test_pages_have_figures_of_every_gpu(stack: Stack, record_property: Record) -> None:
    if "gpu-metrics" not in stack.settings.compose_profiles.split(","):
        pytest.skip("needs gpu-metrics in COMPOSE_PROFILES of .env, then `make up`")
    gpus = wait_for(lambda: [gpu for gpu in gpus_of(stack) if gpu["name"]], "a measured GPU", 60)
    source = {"cuda": "nvidia", "rocm": "amd"}[stack.settings.accelerator]
    for figure in (
        "utilization:ratio",
        "memory_used:bytes",
        "memory_total:bytes",
        "power:watts",
        "temperature:celsius",
    ):
        # The names that the dashboards of Grafana read; the rules make them from the exporter's.
        query = f'gpu:{figure}{{source="{source}"}}'
        series = wait_for(lambda query=query: stack.prometheus(query), query)
        assert len(series) == len(gpus), series
        record_property(query, [sample["value"][1] for sample in series])
    nodes = [node for node in stack.alive_nodes() if node["hostname"].startswith("ray-worker")]
    shown = [gpu["utilizationGpu"] for node in nodes for gpu in node["gpus"]]
    assert len(shown) == len(gpus), "Ray's page shows other GPUs"
    assert None not in shown, "Ray's page shows no utilization"


# --- Half a GPU per job ---


def top(stack: Stack) -> list[str]:
    """Lines of the GPUs in the output of `mlplatform top`."""
    command = (str(stack.root / ".venv/bin/mlplatform"), "top", "--once")
    shown = run(*command, env={**environment(), **client_settings(stack.root).environment()}).stdout
    return [line for line in shown.splitlines() if re.match(r"\S+:\d+ ", line)]


@dataclass(frozen=True)
class Halves:
    """Three jobs with half a GPU each at once, then one after another; and the GPU that two of them shared."""

    at_once: Sequence[Job]
    in_turn: Sequence[Job]
    shared: str


@pytest.fixture(scope="module")
def halves(two_workers: Stack, jobs: Jobs) -> Halves:
    def submit() -> str:
        return jobs.submit(["python", "busy_gpu.py", "400"], SCRIPTS, name="half", resources=Resources(gpus=0.5))

    def ended(job_id: str) -> Job:
        job = jobs.wait(job_id, timeout_s=600)
        assert job.status == "SUCCEEDED", jobs.logs(job_id)[-3000:]
        return job

    def shared_and_busy() -> str:
        lines = [line for line in top(two_workers) if sum(job_id in line for job_id in ids) == 2]
        return next((line for line in lines if re.search(r" [1-9]\d* % ", line)), "")

    ids = [submit() for _ in range(3)]
    try:
        shared = wait_for(shared_and_busy, "a busy GPU with two of the jobs", 120)
        at_once = [ended(job_id) for job_id in ids]
    finally:
        for job_id in ids:
            jobs.stop(job_id)
    return Halves(at_once, [ended(submit()) for _ in range(3)], shared)


@needs(2)
@pytest.mark.timeout(1800)
def test_three_half_gpu_jobs_run_at_once(halves: Halves, record_property: Record) -> None:
    starts = [job.started for job in halves.at_once if job.started]
    ends = [job.ended for job in halves.at_once if job.ended]
    assert max(starts) < min(ends), "they did not run at once"
    at_once, in_turn = seconds(halves.at_once), seconds(halves.in_turn)
    record_property("three jobs, half a GPU each", f"{at_once:.0f} s at once, {in_turn:.0f} s one after another")
    assert at_once < in_turn


@needs(2)
@pytest.mark.timeout(1800)
def test_top_shows_utilization_of_gpu_with_two_jobs(halves: Halves, record_property: Record) -> None:
    record_property("mlplatform top", halves.shared)
    assert halves.shared.count("(0.5)") == 2


@needs(2)
def test_top_shows_job_that_moves_to_other_gpu(two_workers: Stack, jobs: Jobs, record_property: Record) -> None:
    def node_of(job_id: str) -> str:
        return next((line.split(":")[0] for line in top(two_workers) if job_id in line), "")

    with holding_gpu(jobs, 1) as (job_id,):
        before = wait_for(lambda: node_of(job_id), "the job's GPU", 60)
        run("docker", "stop", two_workers.container(before))
        try:
            after = wait_for(lambda: node_of(job_id).replace(before, ""), "the job on the other GPU", 180)
        finally:
            run("docker", "start", two_workers.container(before))
            wait_for(two_workers.whole, "the stopped worker's return")
    record_property("the job moved", f"from {before} to {after}")
