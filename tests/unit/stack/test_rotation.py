"""`make rotate` with a recording program in the place of Docker; `tests/stack/test_rotation.py` has the real one."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml

from mlplatform.credentials import read_s3_account
from mlplatform.errors import HostError, SettingsError
from mlplatform.stack import rotation, secrets_folder, unfinished
from mlplatform.stack.checks import secrets as checks
from mlplatform.stack.checks.finding import Place
from mlplatform.stack.rotation_files import GROUPS, NOT_ROTATED, Plan, Rotation, chosen

CHECKOUT = Path(__file__).parents[3]

# Records each call, and fails at the one that FAILS_AT numbers. For the one-shot, it records what Postgres and MinIO
# accept from then on.
DOCKER = """\
#!/bin/sh
echo "$*" >>"$CALLS"
[ "$(wc -l <"$CALLS")" = "$FAILS_AT" ] && { echo "the engine is gone" >&2; exit 1; }
case "$*" in
  *" config --format json") cat "$CONFIG" ;;
  *" ps --services") cat "$SERVICES" ;;
  *"rotation storage") cp --force "$SECRETS/.rotation/new/"*_* "$ACCEPTED" ;;
esac
"""

PROFILES = "tracking,ray,notebook,monitoring"

PRESENT = {*PROFILES.split(","), "minio"}


@cache
def files() -> dict[str, str]:
    """File of each secret in the shipped compose files, with MinIO and the shared accounts of jobs."""
    found: dict[str, str] = {}
    for file in sorted((CHECKOUT / "compose").glob("*.yaml")):
        if file.name != "store.external.yaml":
            secrets = yaml.safe_load(file.read_text()).get("secrets") or {}
            found |= {name: re.findall(r"\w+", secret["file"])[-1] for name, secret in secrets.items()}
    return found


def mounted() -> dict[str, set[str]]:
    """Files of the services' secrets in the shipped compose files."""
    return {service: {files()[source] for source in of} for service, of in sources().items()}


@cache
def sources() -> dict[str, set[str]]:
    """Secrets of the services in the shipped compose files."""
    found: dict[str, set[str]] = {}
    for file in sorted((CHECKOUT / "compose").glob("*.yaml")):
        for name, service in (yaml.safe_load(file.read_text()).get("services") or {}).items():
            entries = service.get("secrets") or []
            found[name] = {entry["source"] if isinstance(entry, dict) else entry for entry in entries}
    for name in ("ray-head", "ray-worker-0", "ray-worker-1"):
        found[name] = found["ray-node"]
    found["log-shipper"] = found["log-shipper-of-host"]
    return found


SERVICES = (
    *("postgres", "minio", "mlflow", "gateway", "ray-head", "ray-worker-0", "ray-worker-1", "log-shipper"),
    *("notebook", "prometheus", "alertmanager", "postgres-exporter"),
)


class Stack:
    """A checkout with secrets, and the calls that Docker gets for it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self._patch = folder / "checkout", patch
        self.secrets, self.calls_file, self.accepted = self.root / "secrets", folder / "calls", folder / "accepted"
        for path in (self.root, self.accepted, folder / "bin"):
            path.mkdir()
        (folder / "bin" / "docker").write_text(DOCKER)
        (folder / "bin" / "docker").chmod(0o755)
        shutil.copy(CHECKOUT / ".env.example", self.root / ".env")
        secrets_folder.write_missing(self.secrets)
        config = {name: {"secrets": [{"source": each} for each in sorted(of)]} for name, of in sources().items()}
        paths = {name: {"file": str(self.secrets / file)} for name, file in files().items()}
        (folder / "config").write_text(json.dumps({"services": config, "secrets": paths}))
        (folder / "services").write_text("\n".join(SERVICES))
        variables = {
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "CALLS": str(self.calls_file),
            "CONFIG": str(folder / "config"),
            "SERVICES": str(folder / "services"),
            "SECRETS": str(self.secrets),
            "ACCEPTED": str(self.accepted),
            "MLPLATFORM_VERSION": "0",
            "COMPOSE_PROFILES": PROFILES,
        }
        for name, value in variables.items():
            patch.setenv(name, value)
        self.calls_file.touch()

    def rotate(self, only: str = "", fails_at: int = 0) -> list[str]:
        self.calls_file.write_text("")
        self._patch.setenv("FAILS_AT", str(fails_at))
        return list(rotation.rotate(self.root, only))

    @property
    def calls(self) -> list[str]:
        """The calls, without the options that all of them have."""
        return [re.sub(r"^compose .*--profile \* ", "", call) for call in self.calls_file.read_text().splitlines()]

    def contents(self) -> dict[str, bytes]:
        return {name: (self.secrets / name).read_bytes() for name in secrets_folder.FILES}


@pytest.fixture
def gateway(serve: Callable[[Callable[[str, str], tuple[int, str]]], str]) -> dict[str, Any]:
    """The gateway's jobs; each is `{id: time of its running attempt}`. `port` is the gateway's."""
    state: dict[str, Any] = {"jobs": {}}

    def answer(_: str, path: str) -> tuple[int, str]:
        if path == "/api/jobs/":
            common = {"job_id": None, "status": "RUNNING", "entrypoint": ""}
            return 200, json.dumps([{"submission_id": job, **common} for job in state["jobs"]])
        attempt = {"number": 1, "outcome": None, "reason": None, "node": None, "ended": None}
        created = state["jobs"][path.rpartition("/")[2]].isoformat()
        return 200, json.dumps({"attempts": [{**attempt, "created": created}]})

    state["port"] = serve(answer).rpartition(":")[2]
    return state


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gateway: dict[str, Any]) -> Stack:
    monkeypatch.setenv("RAY_PORT", gateway["port"])
    return Stack(tmp_path, monkeypatch)


def position(calls: list[str], pattern: str) -> int:
    (found,) = [number for number, call in enumerate(calls) if re.search(pattern, call)]
    return found


def test_every_secret_has_group_or_reason() -> None:
    grouped = [name for group in GROUPS.values() for name in group.secrets]
    assert sorted([*grouped, *NOT_ROTATED]) == sorted(secrets_folder.FILES)


def test_groups_that_interrupt_must_be_named() -> None:
    assert chosen("", PRESENT) == ("postgres", "minio", "mlflow", "people", "monitoring")
    assert chosen("ray,minio", PRESENT) == ("minio", "ray")
    assert set(chosen("all", PRESENT)) == set(GROUPS) - {"grafana", "certificates"}
    assert "minio" not in chosen("all", PRESENT - {"minio"}), "the keys of another S3 server are not ours"


@pytest.mark.parametrize("only", ["postgres,x", "grafana", "wandb_netrc"])
def test_unknown_group_is_rejected(only: str) -> None:
    with pytest.raises(SettingsError, match="use some of postgres, minio, mlflow"):
        chosen(only, PRESENT)


@pytest.mark.parametrize(
    ("only", "restarted"),
    [
        ("postgres", "gateway mlflow postgres-exporter"),
        ("mlflow", "gateway mlflow prometheus"),
        ("monitoring", "alertmanager gateway postgres-exporter prometheus"),
        ("notebook", "notebook"),
        ("ray", "gateway log-shipper prometheus ray-head ray-worker-0 ray-worker-1"),
        ("minio", "gateway minio mlflow prometheus"),
        ("people", "gateway"),
    ],
)
def test_only_services_that_must_are_restarted(only: str, restarted: str) -> None:
    plan = Plan(chosen(only, PRESENT), SERVICES)
    assert " ".join(rotation.restarts(mounted(), plan)) == restarted


def test_default_rotation_restarts_no_node_and_no_notebook(stack: Stack) -> None:
    stack.rotate()
    restarted = " ".join(call for call in stack.calls if re.match("(stop|restart|up) ", call))
    assert "mlflow" in restarted
    assert not re.search(r"ray-head|ray-worker|notebook", restarted)


def test_accounts_change_while_their_services_are_stopped(stack: Stack) -> None:
    stack.rotate()
    patterns = ["^stop .*mlflow", "rotation storage", "rotation tracking", "^restart minio", "^up .* gateway$"]
    patterns += ["rotation forget-keys jobs", "^up .*mlflow"]
    positions = [position(stack.calls, pattern) for pattern in patterns]
    assert positions == sorted(positions)


def test_every_secret_of_plan_is_replaced(stack: Stack) -> None:
    before = stack.contents()
    printed = stack.rotate("all")
    after = stack.contents()
    kept = {name for name, content in after.items() if content == before[name]}
    assert kept == {*NOT_ROTATED, "grafana_password"}
    assert not (stack.secrets / ".rotation").exists()
    words = [word for content in [*before.values(), *after.values()] for word in content.decode().split()]
    leaked = [word for word in words if len(word) >= 20 and word in "\n".join([*printed, *stack.calls])]
    assert leaked == []


def test_derived_files_match_their_sources(stack: Stack) -> None:
    stack.rotate()
    for source, web in (("metrics_password", "metrics_web"), ("prometheus_password", "prometheus_web")):
        hashed = (stack.secrets / web).read_text().split("prometheus: ")[1].strip()
        assert bcrypt.checkpw((stack.secrets / source).read_bytes(), hashed.encode())


def test_files_of_running_containers_are_written_in_place(stack: Stack) -> None:
    inodes = {name: (stack.secrets / name).stat().st_ino for name in secrets_folder.FILES}
    stack.rotate()
    same = {name for name, inode in inodes.items() if (stack.secrets / name).stat().st_ino == inode}
    assert {"minio_job", "mlflow_job", "minio_person", "mlflow_person"} <= same
    assert "minio_mlflow" not in same
    assert (stack.secrets / "minio_job").stat().st_mode & 0o777 == 0o444


def test_jobs_get_another_account_in_minio(stack: Stack) -> None:
    stack.rotate("minio")
    assert re.fullmatch("job-[0-9a-f]{8}", read_s3_account(stack.secrets / "minio_job")[0])
    assert read_s3_account(stack.secrets / "minio_person")[0] == "person"


def test_interruption_at_any_step_is_completed(stack: Stack) -> None:
    groups = "postgres,minio,mlflow"
    stack.rotate(groups)
    steps = len(stack.calls)
    interrupted = 0
    for step in range(1, steps + 1):
        before = stack.contents()
        with pytest.raises(HostError):
            stack.rotate(groups, fails_at=step)
        pending = Rotation(stack.secrets).plan
        if pending is None:
            assert stack.contents() == before, "something changed before there was a plan"
            continue
        interrupted += 1
        assert "completing the interrupted rotation" in stack.rotate("monitoring")[0]
        for name in ("postgres_password", "minio_job"):
            assert (stack.secrets / name).read_text() == (stack.accepted / name).read_text(), step
        assert stack.contents()["mlflow_person"] != before["mlflow_person"]
        assert Rotation(stack.secrets).plan is None
    assert interrupted > 8


def test_grafana_stopped_by_interrupted_rotation_gets_its_password(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPOSE_PROFILES", f"{PROFILES},grafana")
    with (stack.root.parent / "services").open("a") as services:
        services.write("\ngrafana")
    stack.rotate("grafana")
    started = next(position for position, call in enumerate(stack.calls) if call.startswith("up "))
    assert "grafana" in stack.calls[started].split()
    assert started < position(stack.calls, "exec --interactive grafana")


def test_start_and_doctor_name_interrupted_rotation(stack: Stack) -> None:
    with pytest.raises(HostError, match="run `make rotate` again"):
        stack.rotate(fails_at=5)
    with pytest.raises(HostError, match="`make rotate` completes it"):
        unfinished.check(stack.root)
    (found,) = checks.rotation(Place(stack.root))
    assert (found.fix, found.blocks) == ("make rotate", True)


def test_former_accounts_stay_while_attempts_use_them(stack: Stack, gateway: dict[str, Any]) -> None:
    gateway["jobs"]["old"] = datetime.now(UTC) - timedelta(hours=1)
    assert "kept the former accounts" in "\n".join(stack.rotate())
    assert [call for call in stack.calls if "forget" in call and not call.endswith("forget-keys")] == []
    (found,) = checks.rotation(Place(stack.root))
    assert found.fix == "make rotate ONLY=former"
    with pytest.raises(HostError, match=r"accounts from before the last rotation \(old\)"):
        stack.rotate("minio")
    stack.rotate("former")
    assert Rotation(stack.secrets).waiting_since
    assert not any(call.endswith("forget-keys jobs") for call in stack.calls)
    gateway["jobs"] = {"new": datetime.now(UTC) + timedelta(hours=1)}
    stack.rotate("former")
    assert position(stack.calls, "forget-keys jobs")
    assert list(checks.rotation(Place(stack.root))) == []


def test_later_rotation_of_other_secrets_keeps_former_accounts(stack: Stack, gateway: dict[str, Any]) -> None:
    gateway["jobs"]["old"] = datetime.now(UTC) - timedelta(hours=1)
    stack.rotate()
    since = Rotation(stack.secrets).waiting_since
    stack.rotate("monitoring")
    assert Rotation(stack.secrets).waiting_since == since


def test_stack_that_is_not_whole_is_refused(stack: Stack, tmp_path: Path) -> None:
    before = stack.contents()
    (tmp_path / "services").write_text("postgres\nminio\ngateway\nray-head\n")
    with pytest.raises(HostError, match="mlflow does not: run `make up` first"):
        stack.rotate()
    assert stack.contents() == before


def test_second_rotation_waits_for_first(stack: Stack) -> None:
    lines = rotation.rotate(stack.root)
    next(lines)
    folder = os.open(stack.secrets, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lines.close()
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)
