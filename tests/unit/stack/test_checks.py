"""Checks of `mlplatform doctor` on simulated hosts, folders of secrets, services and GPUs."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from mlplatform.errors import HostError
from mlplatform_stack import checks, docker, host, rotation, secrets_folder, sizing, unfinished, upgrade
from mlplatform_stack import cli as cli_stack
from mlplatform_stack.backup import verbs as backup
from mlplatform_stack.checks import machine, running, start
from mlplatform_stack.checks.finding import Finding, Place
from mlplatform_stack.host import Host
from mlplatform_stack.settings import StackSettings

CHECKOUT = Path(__file__).parents[3]
Program = Callable[[str, str], Path]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A checkout with settings and secrets, on a host whose kernel has no settings."""
    text = (CHECKOUT / ".env.example").read_text()
    (tmp_path / ".env").write_text(text.replace("MLPLATFORM_VERSION=", "MLPLATFORM_VERSION=0"))
    secrets_folder.write_missing(tmp_path / "secrets")
    return Place(tmp_path, proc=tmp_path / "proc", dev=tmp_path / "dev")


def kernel_with(place: Place, **values: str) -> Place:
    for name, value in values.items():
        path = place.proc / "sys" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return place


def test_low_kernel_limit_is_named_with_its_fix(place: Place) -> None:
    (found,) = machine.limits(kernel_with(place, fs__inotify__max_user_instances="128", kernel__pid_max="4194304"))
    assert found.problem == "fs.inotify.max_user_instances is 128, less than 256."
    assert "fs.inotify.max_user_instances=256" in found.fix


def test_refused_overcommit_is_found(place: Place) -> None:
    assert list(machine.limits(kernel_with(place, vm__overcommit_memory="1"))) == []
    assert len(list(machine.limits(kernel_with(place, vm__overcommit_memory="2")))) == 1


def test_safe_fixes_close_folder_and_write_missing_secrets(place: Place) -> None:
    folder = place.root / "secrets"
    before = (folder / "s3_jobs").read_text()
    folder.chmod(0o755)
    (folder / "ray_token").unlink()
    found = checks.examine(place, [start.secret_files])
    assert ["0755" in finding.problem or "ray_token" in finding.problem for finding in found] == [True, True]
    checks.repair(found)
    assert checks.examine(place, [start.secret_files]) == []
    assert (folder / "s3_jobs").read_text() == before


def test_doctor_reports_setting_that_no_longer_fits(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "this_host", lambda: Host(7 * sizing.GIB, 2))
    listed = [check for check in checks.CHECKS if check is start.misfits]
    (found,) = (each for each in checks.examine(place, listed) if each.problem.startswith("WORKER_MEMORY"))
    assert "more than the 3 GiB" in found.problem
    assert "WORKER_MEMORY=" in found.fix


@pytest.mark.parametrize(("server", "limits", "count"), [("https://s3.example.org", "ray=1t", 1), ("", "ray=1t", 0)])
def test_quotas_at_another_server_are_named(place: Place, server: str, limits: str, count: int) -> None:
    with (place.root / ".env").open("a") as file:
        file.write(f"S3_ENDPOINT_URL={server}\nBUCKET_QUOTAS={limits}\n")
    problems = [finding.problem for finding in start.quotas(place)]
    assert problems == [f"BUCKET_QUOTAS={limits} has no effect at S3_ENDPOINT_URL={server}."] * count


def test_failed_containers_are_found_and_ended_ones_not(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    containers = [
        {"Service": "mlflow", "State": "running", "Health": "unhealthy", "ExitCode": 0},
        {"Service": "storage-init", "State": "exited", "Health": "", "ExitCode": 0},
        {"Service": "minio", "State": "exited", "Health": "", "ExitCode": 1},
        {"Service": "gateway", "State": "running", "Health": "healthy", "ExitCode": 0},
        {"Service": "notebook", "State": "restarting", "Health": "", "ExitCode": 0},
        {"Service": "amd-exporter", "State": "created", "Health": "", "ExitCode": 128},
    ]
    listing = "\n".join(json.dumps({**each, "Name": f"ml-{each['Service']}"}) for each in containers)
    monkeypatch.setattr(docker, "answer", lambda *command, **options: listing)
    shutil.copytree(CHECKOUT / "compose", place.root / "compose", dirs_exist_ok=True)
    found = list(running.unhealthy(place))
    assert [(each.problem, each.blocks) for each in found] == [
        ("The container ml-mlflow is unhealthy.", True),
        ("The container ml-minio exited with 1.", True),
        ("The container ml-notebook exited with 0.", True),
        ("The container ml-amd-exporter exited with 128.", False),
    ]
    assert found[0].fix == "make logs SERVICE=mlflow"


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


ALERT = {
    "labels": {"alertname": "NewJobsRejected", "severity": "critical"},
    "annotations": {"summary": "New jobs are rejected.", "action": "`make prune APPLY=1` removes data."},
    "activeAt": "2026-11-29T10:20:30.123Z",
}


@pytest.mark.parametrize(
    ("severity", "state", "expected"),
    [("critical", "firing", [True]), ("warning", "firing", [False]), ("x", "pending", [])],
)
def test_firing_alerts_are_findings(
    place: Place,
    serve: Callable[..., str],
    severity: str,
    state: str,
    expected: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alert = {**ALERT, "labels": {**ALERT["labels"], "severity": severity}, "state": state}
    paths: list[str] = []

    def answer(method: str, path: str) -> tuple[int, str]:
        paths.append(path)
        return 200, json.dumps({"data": {"alerts": [alert]}})

    monkeypatch.setenv("PROMETHEUS_PORT", port_of(serve(answer)))
    found = list(running.firing(place))
    why = "The alert NewJobsRejected fires, active since 2026-11-29 10:20 UTC."
    fix = "`make prune APPLY=1` removes data."
    assert found == [Finding("New jobs are rejected.", why, fix, blocks) for blocks in expected]
    assert paths == ["/api/v1/alerts"]


def test_prometheus_that_does_not_run_or_fails_hides_nothing(
    place: Place, serve: Callable[..., str], closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_PORT", str(closed_port))
    assert list(running.firing(place)) == []
    monkeypatch.setenv("PROMETHEUS_PORT", port_of(serve(lambda method, path: (503, ""))))
    (found,) = checks.examine(place, [running.firing])
    assert "Prometheus answers with 503" in found.problem


def test_doctor_says_what_it_knows_without_monitoring(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "CHECKS", ())
    monkeypatch.setattr(checks, "examine", lambda place: [])
    for profiles, said in (("monitoring", False), ("notebook", True)):
        monkeypatch.setenv("COMPOSE_PROFILES", profiles)
        assert list(running.firing(place)) == []
        with pytest.raises(typer.Exit):
            cli_stack.check(place.root, as_json=False, fix=False)
        assert ("only the containers are checked" in capsys.readouterr().out) is said


@pytest.mark.parametrize(("profiles", "people", "found"), [("notebook", 2, 1), ("notebook", 0, 0), ("ray", 2, 0)])
def test_shared_notebook_is_named_once_people_exist(
    place: Place, serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch, profiles: str, people: int, found: int
) -> None:
    asked = json.dumps({"people": [{"name": str(number)} for number in range(people)]})
    monkeypatch.setenv("RAY_PORT", port_of(serve(lambda method, path: (200, asked))))
    monkeypatch.setenv("COMPOSE_PROFILES", profiles)
    assert len(list(running.shared_notebook(place))) == found


def test_check_that_cannot_run_hides_no_other(place: Place) -> None:
    def broken(place: Place) -> Iterator[Finding]:
        raise HostError("no engine")
        yield

    def works(place: Place) -> Iterator[Finding]:
        yield Finding("a", "b", "c")

    broke, found = checks.examine(place, [broken, works])
    assert "broken could not run: no engine" in broke.problem
    assert found == Finding("a", "b", "c")


def test_doctor_prints_json_and_fails_if_a_finding_blocks(place: Place) -> None:
    (place.root / "secrets" / "ray_token").unlink()
    command = [sys.executable, "-m", "mlplatform", "doctor", "--json", "--root", str(place.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert [finding["fix"] for finding in found if finding["safe_fix"]] == ["make env"]
    assert StackSettings.load(place.root / ".env").mlplatform_version == "0"


def test_missing_timer_of_backups_is_found(place: Place) -> None:
    (found,) = start.no_timer(place)
    assert found.problem.startswith("BACKUP_TO in .env is empty")
    with (place.root / ".env").open("a") as file:
        file.write("BACKUP_TO=/mnt/backups\n")
    assert list(start.no_timer(place)) == []


@pytest.mark.parametrize(
    ("mark", "fix"),
    [
        (unfinished.UPGRADE / unfinished.FACTS, "`make upgrade` completes it"),
        (unfinished.ROTATION / "ray_token", "`make rotate` completes it"),
        (unfinished.RESTORE, "repeat `make restore FROM=/mnt/backups`"),
    ],
    ids=["upgrade", "rotate", "restore"],
)
def test_interrupted_change_blocks_all_others(
    place: Place, mark: Path, fix: str, request: pytest.FixtureRequest
) -> None:
    assert list(start.interrupted(place)) == []
    (place.root / mark).parent.mkdir(parents=True)
    (place.root / mark).write_text("/mnt/backups")
    (found,) = start.interrupted(place)
    assert found.blocks
    assert fix in found.fix
    changes: dict[str, Callable[[], object]] = {
        "start": lambda: unfinished.check(place.root),
        "upgrade": lambda: upgrade.prepare(place.root),
        "rotate": lambda: next(rotation.rotate(place.root)),
        "restore": lambda: next(backup.restore(place.root, str(place.root))),
    }
    own = request.node.callspec.id
    for verb, change in changes.items():
        if verb != own:
            with pytest.raises(HostError, match=fix):
                change()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'GPU 0: H100'", None),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "version mismatch"),
        ("true", "lists no GPU"),
    ],
)
def test_driver_of_nvidia_that_fails_is_found(
    place: Place, program: Program, script: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATOR", "cuda")
    program("nvidia-smi", script)
    problems = [finding.problem for finding in machine.drivers(place)]
    assert len(problems) == bool(expected)
    assert all(expected in problem for problem in problems if expected)


def test_missing_driver_of_nvidia_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(machine.drivers(place)) == []
    monkeypatch.setenv("ACCELERATOR", "cuda")
    monkeypatch.setenv("PATH", str(place.root))
    assert ["no driver of NVIDIA" in finding.problem for finding in machine.drivers(place)] == [True]


def test_devices_of_other_group_are_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATOR", "rocm")
    (place.dev / "dri").mkdir(parents=True)
    (place.dev / "kfd").touch(0o660)
    assert ["renderD" in finding.problem for finding in machine.drivers(place)] == [True, False]
    node = place.dev / "dri" / "renderD128"
    node.touch(0o660)
    gid = node.stat().st_gid
    fixes = [finding.fix for finding in machine.drivers(place)]
    assert len(fixes) == 2
    assert all(f"RENDER_GID={gid}/" in fix for fix in fixes)
    monkeypatch.setenv("RENDER_GID", str(gid))
    assert list(machine.drivers(place)) == []


LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)
  MIG 3g.20gb     Device  0: (UUID: MIG-0)
  MIG 3g.20gb     Device  1: (UUID: MIG-1)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1)
"""


def test_instances_of_divided_gpu_are_not_counted(program: Program) -> None:
    program("nvidia-smi", f"cat <<'END'\n{LISTING}END")
    assert host._gpus() == ("cuda", 2)
