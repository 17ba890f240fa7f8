"""Waiting jobs report what they wait for, and nodes count once whatever happens to their containers."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest
from host import SCRIPTS, Stack, wait_for

from mlplatform.capacity.resources import Resources, WorkerGroup
from mlplatform.client.jobs import Jobs
from mlplatform_stack import env


@pytest.mark.nightly
def test_worker_restart_keeps_capacity(stack: Stack) -> None:
    stack.compose("stop", "ray-worker-1")
    try:
        with Jobs(env.client_settings(stack.root)) as jobs:

            def waits() -> bool:
                wait = jobs.check_capacity(workers=WorkerGroup(2, gpus=1))
                return wait is not None and "ray-worker-1 is unavailable" in str(wait)

            wait_for(waits, "the worker to be reported unavailable")
    finally:
        stack.up()


def test_ray_node_names_equal_hostnames(stack: Stack) -> None:
    """If a node's name were its address, a recreated container would be counted in addition to its predecessor."""

    def names_are_hostnames() -> bool:
        listed = stack.ray.get("/api/v0/nodes", params={"detail": 1}).json()["data"]["result"]["result"]
        alive = sorted(node["node_name"] for node in listed if node["state"] == "ALIVE")
        return len(alive) == 3 and alive == sorted(node["hostname"] for node in stack.alive_nodes())

    # The dashboard learns of a new node some seconds later.
    wait_for(names_are_hostnames, "the hostnames of all nodes", 30)


@pytest.mark.parametrize("node", ["ray-head", "ray-worker-0", "ray-worker-1"])
def test_raylet_gets_ports_of_agents_on_command_line(stack: Stack, node: str) -> None:
    """A raylet that has to wait for a port aborts after 15 s, which a busy host exceeds."""
    command = stack.execute(node, "pgrep", "--full", "--list-full", "/raylet/raylet ").stdout
    agents = {"metrics-agent-port": 8081, "runtime_env_agent_port": 8082, "dashboard_agent_listen_port": 52365}
    assert {f"--{option}={port}" for option, port in agents.items()} <= set(command.split()), command


def test_job_of_another_person_waits_its_turn(stack: Stack, jobs: Jobs) -> None:
    """Three jobs of one GPU each, on two GPUs; the first two end when the third waits."""
    folder = f"/shared/{uuid.uuid4().hex}"
    stack.execute("notebook", "mkdir", folder)
    hold = f"until [ -e {folder}/enough ]; do sleep 0.2; done"
    people, ids = ("ada", "bob", "cy"), list[str]()
    try:
        for person in people:
            body = {"entrypoint": hold, "entrypoint_num_gpus": 1, "metadata": {"user": person}}
            ids.append(stack.ray.post("/api/jobs/", json=body).raise_for_status().json()["submission_id"])

        def waits() -> bool:
            wait = jobs.check_capacity(Resources(gpus=1))
            return "waits for 1 GPU" in jobs.get(ids[2]).message and wait is not None and ids[0] in wait.users

        wait_for(waits, "the third job to wait for the first person's GPU", 60)
        assert not jobs.attempts(ids[2]), "a waiting job has started"
    finally:
        released = datetime.now(UTC)
        stack.execute("notebook", "touch", f"{folder}/enough")
        ended = [jobs.wait(job_id, timeout_s=120) for job_id in ids]
        stack.execute("notebook", "rm", "-r", folder)
    assert [(job.user, job.status) for job in ended] == [(person, "SUCCEEDED") for person in people]
    (attempt,) = jobs.attempts(ids[2])
    assert attempt.created >= released, "the third job started before a GPU was free"


@pytest.mark.parametrize("way", ["task", "training"])
def test_infeasible_ray_request_appears_in_message_and_log(stack: Stack, jobs: Jobs, way: str) -> None:
    job_id = jobs.submit(["python", "hungry.py", way], SCRIPTS, name="hungry")
    expected = "One worker asks for 1000 CPUs; no node has more than 8 CPUs"
    wait_for(lambda: expected in jobs.get(job_id).message, "the request in the job's message", 240)
    wait_for(lambda: f"To end the job: mlplatform stop {job_id}" in jobs.logs(job_id), "the same in its log", 30)
    assert jobs.stop(job_id)
    assert jobs.wait(job_id, timeout_s=60).status == "STOPPED"
