"""Backup of a stack under load, and its restore into a second stack under another prefix."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from failure_training import (
    CHECKPOINT_EVERY,
    after_a_checkpoint,
    crash_until_healthy,
    hurried,
    nothing_is_lost,
    starts,
    step,
    submit,
)
from host import SCRIPTS, Stack, Trained, run, wait_for
from persons import Person
from releases import FIXTURES, evidence
from secret_search import values

from mlplatform.client.jobs import Jobs
from mlplatform.storage.checkpoint_layout import FOLDER, SNAPSHOT
from mlplatform_stack.env import client_settings

MOVED = {
    "STACK_PREFIX": "moved-",
    "CLUSTER_NETWORK": "10.213.79",
    "COMPOSE_PROFILES": "tracking,ray,notebook",
    "MLFLOW_PORT": "28000",
    "S3_PORT": "29000",
    "S3_CONSOLE_PORT": "29001",
    "RAY_PORT": "28265",
    "NOTEBOOK_PORT": "28888",
    "GRAFANA_PORT": "23000",
    "PROMETHEUS_PORT": "29090",
    "HUB_PORT": "25820",
    "WEBHOOK_SCHEMES": "https",
}
"""Another host, as far as the stack can tell: other names, addresses, volumes, secrets and ports."""

STEPS = 240
"""The training outlasts a backup on a slow machine; it hurries afterwards."""

MOMENTS, RESTORED = 20, 12
"""Number of backups that are made one after another while jobs write, and that of the one that is restored."""


@pytest.fixture
def moved(stack: Stack, tmp_path: Path) -> Iterator[Stack]:
    """A second checkout that nobody has started; the first stack may be stopped meanwhile and keeps its data."""
    second = Stack.checked_out(tmp_path / "moved")
    second.set_env(**MOVED, BACKUP_TO=str(tmp_path / "timer"))
    second.compose("down", "--volumes", "--remove-orphans", check=False)
    try:
        yield second
    finally:
        second.compose("down", "--volumes", "--remove-orphans", "--timeout", "5", check=False)
        if stack.unhealthy():
            stack.up()


def set_password(moved: Stack, text: str) -> None:
    """Set the password of the backups to that of another stack, as docs/operating.md asks for."""
    password = moved.root / "secrets" / "backup_password"
    password.chmod(0o600)
    password.write_text(text)


def restic(stack: Stack, backups: Path, arguments: str) -> str:
    """Output of the restic of the platform's image about backups in a folder."""
    command = ["platform/compose.sh", "run", "--rm", "--no-TTY", "--no-deps", f"--volume={backups}:/target:ro"]
    command += ["--entrypoint=restic", "backup", "--no-lock --no-cache --repo=/target"]
    command += ["--password-file=/run/secrets/backup_password", arguments]
    return run("bash", "-c", " ".join(command), cwd=stack.root).stdout


def archive(stack: Stack, backups: Path, path: Path) -> Path:
    """Write the latest backup's tar to a file, unencrypted; return the file."""
    restic(stack, backups, f"dump latest /stack.tar >{path}")
    return path


@pytest.mark.minio
@pytest.mark.parametrize("release", sorted(FIXTURES.glob("*.tar")), ids=lambda path: path.stem)
def test_data_of_release_is_upgraded(moved: Stack, tmp_path: Path, release: Path) -> None:
    with tarfile.open(release) as tar:
        tar.extractall(tmp_path / "release", filter="data")
    kept = tmp_path / "release"
    moved.set_env(COMPOSE_PROFILES="tracking,ray")
    set_password(moved, (kept / "password").read_text())
    moved.make("restore", f"FROM={kept / 'backups'}")
    wait_for(moved.whole, "the restored stack", 300)
    expected = json.loads((kept / "evidence.json").read_text())
    assert {"job": expected["job"], **evidence(moved, expected["job"])} == expected


def published(stack: Stack, name: str) -> float:
    """A number about backups that the gateway publishes for Prometheus."""
    headers = {"Authorization": f"Bearer {stack.secret('prometheus_password')}"}
    text = httpx.get(f"http://127.0.0.1:{stack.settings.ray_port}/platform/metrics", headers=headers).text
    return float(re.findall(rf"^mlplatform_backup_{name}_seconds (\S+)$", text, re.M)[0])


def damaged(backups: Path, copy: Path) -> Path:
    """Copy a folder of backups, with one byte of its largest file changed; return the copy."""
    shutil.copytree(backups, copy)
    largest = max((path for path in copy.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.chmod(0o600)
    largest.write_bytes(content)
    return copy


# Without versions, a backup may lack the checkpoint that a state file names, if a job writes meanwhile.
@pytest.mark.nightly
@pytest.mark.minio
def test_restored_stack_has_everything_and_resumes_jobs(
    stack: Stack, jobs: Jobs, trained: Trained, people: dict[str, Person], moved: Stack, tmp_path: Path
) -> None:
    stack.write("notebook", "/home/jovyan/work/notes/todo.txt", "buy a GPU")
    writing = submit(jobs, STEPS, 0.5)
    after_a_checkpoint(jobs, writing, more=6)
    seen = step(jobs, writing)
    target = tmp_path / "backups"
    printed = stack.make("backup", f"TO={target}").stderr
    assert "saved the database mlflow" in printed
    assert jobs.get(writing).status == "RUNNING", "the backup outlasted the job that should write during it"
    before = evidence(stack, trained.id, writing)
    jobs.stop(writing)  # here; the restored stack continues it

    content = archive(stack, target, tmp_path / "stack.tar").read_bytes()
    found = [name for name, value in values(stack.root / "secrets").items() if value.encode() in content]
    assert not found, f"the backup contains {found}"
    stack.make("down")
    locked = moved.make("restore", f"FROM={target}", check=False)
    assert "secrets/backup_password does not open" in locked.stderr, locked.stderr
    set_password(moved, stack.secret("backup_password"))
    refused = moved.make("restore", f"FROM={damaged(target, tmp_path / 'damaged')}", check=False)
    assert refused.returncode
    assert "nothing was changed" in refused.stderr, refused.stderr
    assert not moved.containers(), "a damaged backup started something"
    print(moved.make("restore", f"FROM={target}").stdout)
    wait_for(moved.whole, "the restored stack", 300)
    assert evidence(moved, trained.id, writing) == before
    alice = replace(people["alice"], stack=moved)
    assert alice.asks_mlflow("experiments/search?max_results=1") == httpx.codes.OK, "people have no account at MLflow"
    assert moved.settings.stack_prefix == "moved-"
    assert "WEBHOOK_SCHEMES=https,http" in (moved.root / ".env").read_text(), "a setting of the backup is missing"
    assert moved.execute("notebook", "cat", "/home/jovyan/work/notes/todo.txt").stdout == "buy a GPU"
    # Digests are in the gateway's database.
    fetched = moved.execute("notebook", "mlplatform", "models", "download", "digits@champion", "/tmp/model")
    assert "not compared with the gateway's record" not in fetched.stderr, fetched.stderr
    with Jobs(client_settings(moved.root)) as restored:
        wait_for(lambda: len(starts(restored, writing)) > 1, "the job's next attempt", 240)
        assert starts(restored, writing)[-1] > 0, "the job began again instead of resuming"
        assert step(restored, writing) >= seen - 3
        nothing_is_lost(moved, restored, writing, STEPS)

    again = moved.make("restore", f"FROM={target}", check=False)
    assert again.returncode
    assert "FORCE=1" in again.stderr

    # The restored stack makes backups itself, because its `.env` has BACKUP_TO; nobody but the timer has done so.
    kept = tmp_path / "timer" / "snapshots"
    wait_for(lambda: list(kept.iterdir()) if kept.exists() else [], "a backup by the timer", 180)
    wait_for(lambda: published(moved, "success_timestamp") > 0, "the time of the backup among the metrics", 60)
    assert published(moved, "interval") == 24 * 3600
    problems = moved.problems()
    assert not [problem for problem in problems if "backup" in problem or "could not run" in problem], problems
    crash_until_healthy(moved, "backup-timer")


@pytest.mark.nightly
def test_forced_restore_replaces_all_data(stack: Stack, jobs: Jobs, trained: Trained, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    before = evidence(stack, trained.id)
    stack.make("backup", f"TO={target}")
    later = submit(jobs, 5, 0.2)
    wait_for(lambda: jobs.get(later).status == "SUCCEEDED", "a job after the backup", 300)
    stack.s3.delete_object(Bucket="ray", Key=stack.objects("ray", f"{trained.id}/")[0])
    refused = stack.make("restore", f"FROM={target}", check=False)
    assert "FORCE=1" in refused.stderr
    stack.make("restore", f"FROM={target}", "FORCE=1")
    wait_for(stack.whole, "the restored stack", 300)
    assert evidence(stack, trained.id) == before
    assert stack.ray.get(f"/api/jobs/{later}").status_code == httpx.codes.NOT_FOUND
    assert not stack.runs_of(later)
    assert not stack.objects("ray", f"{later}/")


class Writers:
    """Twenty jobs that write: two trainings with checkpoints, and eighteen with an artifact and a metric per step."""

    def __init__(self, stack: Stack, jobs: Jobs) -> None:
        # A step every six seconds kept two cores so busy that the last job started after the first had ended.
        self.trainings = [submit(jobs, MOMENTS * 10, 10) for _ in range(2)]
        command = ["python", "writes.py", "--pause=10"]
        self.writers = [jobs.submit(command, SCRIPTS, name="writes") for _ in range(18)]
        self.all = self.trainings + self.writers
        wait_for(lambda: all(step(jobs, job) > CHECKPOINT_EVERY for job in self.trainings), "two checkpoints", 300)
        wait_for(lambda: all("wrote step 1" in jobs.logs(job) for job in self.writers), "eighteen jobs that write", 300)
        runs = [run["info"] for job in self.writers for run in stack.runs_of(job)]
        self.artifacts = {
            run["run_id"]: "mlflow-artifacts" + run["artifact_uri"].removeprefix("mlflow-artifacts:") for run in runs
        }
        """Place of the artifacts of each of the eighteen runs, by its id."""


def logged_steps(stack: Stack, dump: bytes) -> dict[str, list[int]]:
    """Values of the metric `step` of each run in a dump of MLflow's database."""
    container = ("docker", "exec", "--interactive", stack.container("postgres"))
    command = (*container, "pg_restore", "--data-only", "--table=metrics", "--file=-")
    text = subprocess.run(command, input=dump, capture_output=True, check=True).stdout.decode()
    found = re.search(r"^COPY public\.metrics \((.*)\) FROM stdin;\n(.*?)^\\\.$", text, re.M | re.S)
    assert found
    columns, steps = found[1].replace('"', "").split(", "), defaultdict[str, list[int]](list)
    for line in found[2].splitlines():
        row = dict(zip(columns, line.split("\t"), strict=True))
        if row["key"] == "step":
            steps[row["run_uuid"]].append(int(row["step"]))
    return steps


def assert_consistent(stack: Stack, backup: Path, jobs: Writers) -> dict[str, int]:
    """Assert that a backup has every artifact and checkpoint that its database and state files name.

    Returns the number of steps that the database has of each of the eighteen runs.
    """
    with tarfile.open(backup) as tar:
        names = set(tar.getnames())
        (dump,) = [content for content in [tar.extractfile("databases/mlflow")] if content]
        steps = logged_steps(stack, dump.read())
        for run_id, place in jobs.artifacts.items():
            assert sorted(steps[run_id]) == list(range(len(steps[run_id])))
            assert steps[run_id]
            assert [number for number in steps[run_id] if f"objects/{place}/steps/{number}.txt" not in names] == []
        for job in jobs.trainings:
            (state,) = [name for name in names if re.match(rf"objects/ray/{job}/.*/{SNAPSHOT}$", name)]
            content = tar.extractfile(state)
            assert content
            folders = set(re.findall(rf'"{FOLDER}": ?"([^"]+)"', content.read().decode()))
            assert folders
            assert {f"{state.removesuffix(SNAPSHOT)}{folder}/state.json" for folder in folders} <= names
    return {run_id: len(steps[run_id]) for run_id in jobs.artifacts}


def all_steps_are_kept(stack: Stack, jobs: Jobs, job_id: str, saved: dict[str, int], later: dict[str, int]) -> None:
    """Assert that a job of `writes.py` succeeds, with each step's metric exactly once and each step's artifact.

    It continues from the steps per run that were `saved` in the restored backup; the last backup has `later` ones,
    which are more than the job can write before it is hurried.
    """
    job = jobs.wait(job_id, timeout_s=300)
    assert job.status == "SUCCEEDED", jobs.logs(job_id)[-4000:]
    (found,) = stack.runs_of(job_id)
    assert found["info"]["status"] == "FINISHED"
    points = stack.history(found, "step")
    assert sorted(int(point["value"]) for point in points) == list(range(len(points)))
    run_id = found["info"]["run_id"]
    assert saved[run_id] < len(points) <= later[run_id], "another backup was restored"
    folder = found["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/")
    for number in range(len(points)):
        artifact = stack.s3.get_object(Bucket="mlflow-artifacts", Key=f"{folder}/steps/{number}.txt")
        assert set(artifact["Body"].read().decode().splitlines()) == {f"{job_id} {number:06}"}


@pytest.mark.nightly
@pytest.mark.minio
@pytest.mark.timeout(3600)
def test_backups_while_twenty_jobs_write_are_consistent(stack: Stack, jobs: Jobs, moved: Stack, tmp_path: Path) -> None:
    writing, target, steps = Writers(stack, jobs), tmp_path / "backups", list[dict[str, int]]()
    every_backup_is_kept = stack.changed(BACKUP_KEEP_DAILY="0", BACKUP_KEEP_WEEKLY="0", BACKUP_KEEP_MONTHLY="0")
    try:
        with every_backup_is_kept:
            for _ in range(MOMENTS):
                stack.make("backup", f"TO={target}")
                steps.append(assert_consistent(stack, archive(stack, target, tmp_path / "stack.tar"), writing))
        assert {jobs.get(job_id).status for job_id in writing.all} == {"RUNNING"}, "a job did not write all along"
    finally:
        for job_id in writing.all:
            jobs.stop(job_id)
    seen = [sum(backup.values()) for backup in steps]
    assert seen == sorted(set(seen)), "nothing was written between two backups"
    set_password(moved, stack.secret("backup_password"))
    kept = sorted(json.loads(restic(stack, target, "snapshots --json")), key=lambda entry: entry["time"])
    assert len(kept) == MOMENTS
    # The first stack stays up, idle. A restore first reads and checks the data of all backups.
    moved.make("restore", f"FROM={target}", f"SNAPSHOT={kept[RESTORED]['id']}")
    with Jobs(client_settings(moved.root)) as restored, ExitStack() as hurry:
        for job_id in writing.all:
            hurry.enter_context(hurried(moved, job_id))
        for job_id in writing.trainings:
            nothing_is_lost(moved, restored, job_id, MOMENTS * 10)
        for job_id in writing.writers:
            all_steps_are_kept(moved, restored, job_id, steps[RESTORED], steps[-1])
