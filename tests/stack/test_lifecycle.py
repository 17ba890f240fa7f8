"""Life cycle of a stack: workers leave and rejoin, one half of it, a new start, a restart of the engine."""

from __future__ import annotations

import time

import httpx
import pytest
from host import Stack, Trained, run, wait_for


def still_there(stack: Stack, job_id: str) -> None:
    """The job's run, its model and its checkpoints, and Ray's memory of the job."""
    runs = stack.runs_of(job_id)
    assert [entry["info"]["status"] for entry in runs] == ["FINISHED"]
    alias = stack.mlflow.get("/registered-models/alias", params={"name": "digits", "alias": "champion"})
    assert alias.status_code == httpx.codes.OK, alias.text
    assert stack.objects("ray", f"{job_id}/")
    assert stack.ray.get(f"/api/jobs/{job_id}").json()["status"] == "SUCCEEDED"


def test_stopped_worker_leaves_and_started_worker_rejoins(stack: Stack) -> None:
    wait_for(lambda: len(stack.alive_nodes()) == 3, "a head and two workers")
    run("docker", "stop", stack.container("ray-worker-0"))
    wait_for(lambda: len(stack.alive_nodes()) == 2, "one node fewer")
    run("docker", "start", stack.container("ray-worker-0"))
    wait_for(lambda: len(stack.alive_nodes()) == 3, "the worker back")
    wait_for(lambda: not stack.unhealthy(), "every service healthy")


def test_start_with_passwords_that_the_data_does_not_know_says_what_to_do(stack: Stack) -> None:
    secret = stack.root / "secrets" / "postgres_password"
    known = secret.read_text()
    try:
        secret.chmod(0o644)
        secret.write_text("that of another checkout")
        refused = stack.make("up", check=False)
    finally:
        secret.write_text(known)
        secret.chmod(0o444)
        stack.make("up")
    assert refused.returncode == 2
    assert f"{stack.container('storage-init')} exited with 1" in refused.stderr
    assert "Postgres refuses the password in secrets/postgres_password: another checkout" in refused.stderr
    assert "Traceback" not in refused.stderr


# Three starts of a stack; that all is there after `down` and `up`, CI sees in test_losses.
@pytest.mark.soak
def test_data_outlives_down_and_half_a_stack_is_enough(stack: Stack, trained: Trained) -> None:
    stack.make("down")
    assert not stack.containers()

    stack.make("up", "ONLY=tracking")
    services = {entry["Config"]["Labels"]["com.docker.compose.service"] for entry in stack.containers()}
    assert "mlflow" in services
    assert not any(service.startswith("ray") for service in services)
    assert len(stack.runs_of(trained.id)) == 1

    stack.make("down")
    stack.make("up", "ONLY=ray")
    services = {entry["Config"]["Labels"]["com.docker.compose.service"] for entry in stack.containers()}
    assert "ray-head" in services
    assert "mlflow" not in services
    printed = stack.execute(
        "notebook", "ray", "job", "submit", "--working-dir", ".", "--", "python", "digits.py", "--epochs=1"
    ).stdout
    assert "othing is tracked" in printed, printed[-2000:]
    job_id = printed.split("Job '")[1].split("'")[0]
    assert stack.objects("ray", f"{job_id}/"), "an untracked job checkpoints all the same"

    stack.make("up")
    still_there(stack, trained.id)


def test_restart_of_the_engine_brings_everything_back(stack: Stack, trained: Trained) -> None:
    started = time.monotonic()
    run(str(stack.root / "tests/stack/engine.sh"), "restart")
    wait_for(lambda: not stack.unhealthy(), "every service healthy after the engine's restart", 480)
    print(f"\nhealthy {time.monotonic() - started:.0f} s after the engine was told to restart")
    wait_for(lambda: len(stack.alive_nodes()) == 3, "the whole cluster")
    still_there(stack, trained.id)
    # One-shots stay ended, and what they made is there.
    stack.s3.head_bucket(Bucket="jobs")
