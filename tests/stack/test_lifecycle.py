"""Life cycle of a stack: partial stacks, `down` and `up`, a restart of Docker."""

from __future__ import annotations

import time

import httpx
import pytest
from host import Stack, Trained, run, wait_for


def still_there(stack: Stack, job_id: str) -> None:
    """Assert that the job's run, model, checkpoints and state still exist."""
    runs = stack.runs_of(job_id)
    assert [entry["info"]["status"] for entry in runs] == ["FINISHED"]
    alias = stack.mlflow.get("/registered-models/alias", params={"name": "digits", "alias": "champion"})
    assert alias.status_code == httpx.codes.OK, alias.text
    assert stack.objects("ray", f"{job_id}/")
    assert stack.ray.get(f"/api/jobs/{job_id}").json()["status"] == "SUCCEEDED"


@pytest.mark.nightly
def test_up_with_wrong_database_password_explains_fix(stack: Stack) -> None:
    secret = stack.root / "secrets" / "postgres_password"
    known = secret.read_text()
    try:
        secret.chmod(0o644)
        secret.write_text("that of another checkout")
        refused = stack.make("up", check=False)
    finally:
        secret.write_text(known)
        secret.chmod(0o444)
        stack.up()
    assert refused.returncode == 2
    assert f"{stack.container('storage-init')} exited with 1" in refused.stderr
    assert "Postgres rejected the password in secrets/postgres_password: another checkout" in refused.stderr
    assert "Traceback" not in refused.stderr


# This starts the stack three times.
@pytest.mark.nightly
def test_data_survives_down_and_partial_stacks_work(stack: Stack, trained: Trained) -> None:
    stack.make("down")
    assert not stack.containers()

    stack.make("up", "ONLY=tracking")
    services = stack.by_service()
    assert "mlflow" in services
    assert not any(service.startswith("ray") for service in services)
    assert len(stack.runs_of(trained.id)) == 1

    stack.make("down")
    stack.make("up", "ONLY=ray")
    services = stack.by_service()
    assert "ray-head" in services
    assert "mlflow" not in services
    printed = stack.execute(
        "notebook", "ray", "job", "submit", "--working-dir", ".", "--", "python", "digits.py", "--epochs=1"
    ).stdout
    assert "othing is tracked" in printed, printed[-2000:]
    job_id = printed.split("Job '")[1].split("'")[0]
    assert stack.objects("ray", f"{job_id}/"), "an untracked job saved no checkpoints"

    stack.make("up")
    still_there(stack, trained.id)


@pytest.mark.nightly
def test_stack_recovers_from_docker_restart(stack: Stack, trained: Trained) -> None:
    started = time.monotonic()
    run(str(stack.root / "tests/stack/engine.sh"), "restart")
    wait_for(stack.whole, "every service to be healthy after the restart of Docker", 480)
    print(f"\nhealthy {time.monotonic() - started:.0f} s after the request to restart Docker")
    still_there(stack, trained.id)
    # One-shots stay ended, and their results still exist.
    stack.s3.head_bucket(Bucket="jobs")
