"""Rotation of the stack's secrets while it runs and trains, `make rotate`.

In this order, so that an interruption at any point can be resumed by running it again, with the same new secrets:

1. The new secrets are generated beside the present ones, and the plan is recorded (`rotation_files.py`).
2. Services that hold accounts of Postgres, MinIO or MLflow are stopped. Ray and JupyterLab run on.
3. The accounts are changed by the one-shot services (`services/rotation.py`). Jobs get a new account in MinIO and a
   second password in MLflow: attempts that are running keep theirs.
4. The new files replace the present ones.
5. MinIO is restarted for its root account, then the stopped services are started.
6. Users and keys that the platform did not make are removed, and the former accounts of jobs, unless an attempt that
   started before still runs. `make rotate ONLY=former` removes them later.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from mlplatform.client.jobs import ENDED, Jobs
from mlplatform.errors import HostError, PlatformError
from mlplatform.files import atomic
from mlplatform.settings.stack import StackSettings
from mlplatform.stack import compose as stack_compose
from mlplatform.stack import entrance, hosts, services, unfinished
from mlplatform.stack.compose_command import compose
from mlplatform.stack.env import client_settings
from mlplatform.stack.rotation_files import FORMER, GROUPS, Plan, Rotation, chosen

_START_SECONDS = 300

_WAVES = (("ray-head",), ("gateway",))
"""Services that start before all others, as `depends_on` orders them otherwise."""

_AUTHORITY = ("/data/caddy/pki/authorities/local", "/data/caddy/certificates/local")
"""Folders of the entrance with the key of its own authority, and the certificates that this has issued."""

_OF_JOBS = {"minio", "mlflow"}
"""Groups with accounts that jobs use."""


def rotate(root: Path, only: str = "") -> Iterator[str]:
    """Change the secrets of a running stack, or complete a rotation that was interrupted; one at a time.

    Args:
        root: folder of the checkout.
        only: groups of secrets, comma-separated; empty for all that interrupt neither a job nor a person.

    Yields:
        A line per step, for display.

    Raises:
        SettingsError: a group is unknown.
        HostError: the stack does not run as a whole, another change of it was interrupted, or a step failed.
    """
    unfinished.check(root, "rotate")
    settings = StackSettings.load(root / ".env")
    rotation = Rotation(root / "secrets")
    with atomic.alone(rotation.folder):
        yield from _rotate(root, settings, rotation, only)


def _rotate(root: Path, settings: StackSettings, rotation: Rotation, only: str) -> Iterator[str]:
    plan = rotation.plan
    if plan:
        yield f"completing the interrupted rotation of: {', '.join(plan.groups)}"
    elif only == FORMER:
        yield from _end_former(root, rotation)
        return
    else:
        groups = _chosen(settings, only)
        plan = Plan(groups, _check_ready(root, settings, groups))
        if _OF_JOBS & set(groups) and rotation.waiting_since:
            _check_former(root, rotation.waiting_since)
            yield from _end_former(root, rotation)
        rotation.begin(plan)
        yield f"generated {len(plan.secrets)} new secrets of: {', '.join(groups)}"
    yield from _apply(root, settings, rotation, plan)
    for name, group in GROUPS.items():
        if group.interrupts and name not in plan.groups and group.profile in services.profiles_of(settings):
            yield f"not changed: {', '.join(group.secrets)} (ONLY={name}: {group.interrupts})"


def _own_store(settings: StackSettings) -> list[str]:
    """Return the service of the stack's own object store; none with another S3 server, whose keys others issue."""
    return [] if settings.s3_endpoint else [services.MINIO]


def _chosen(settings: StackSettings, only: str) -> tuple[str, ...]:
    """Return the groups of secrets to rotate.

    Raises:
        SettingsError: a group is unknown, or its services are not part of this stack.
    """
    return chosen(only, {*services.profiles_of(settings), *_own_store(settings)})


def restarts(mounted: Mapping[str, Collection[str]], plan: Plan) -> list[str]:
    """Return the services that read one of the secrets at their start only, and so must be restarted.

    Args:
        mounted: secrets of each service of the compose files.
        plan: the rotation.
    """
    reads = {name: plan.secrets & set(of) for name, of in mounted.items() if name in plan.services}
    return sorted(name for name, changed in reads.items() if changed and _must_restart(name, changed))


def _must_restart(service: str, changed: set[str]) -> bool:
    if service == "postgres":
        return False  # reads its password when it creates the volume
    if service == "minio":
        return "minio_root_password" in changed
    if service == "notebook":
        return "notebook_token" in changed  # clients in it read the other files for each connection
    if service.startswith("ray-"):
        return "cluster_token" in changed
    return True


def _apply(root: Path, settings: StackSettings, rotation: Rotation, plan: Plan) -> Iterator[str]:
    mounted = _mounted(root)
    changing = restarts(mounted, plan)
    stopped = [name for name in changing if name != "minio"]
    # An interrupted rotation may have stopped Grafana, which has to run for its new password.
    stores = ("postgres", *_own_store(settings), *(["grafana"] if "grafana" in plan.groups else []))
    _compose(root, "up", "--detach", "--no-build", "--no-recreate", "--no-deps", "--wait", *stores)
    if "grafana" in plan.groups:
        _reset_grafana(settings, rotation)
        yield "Grafana: admin has a new password"
    if stopped:
        yield f"stopping for new secrets: {', '.join(stopped)}"
        _compose(root, "stop", *stopped)
    yield from _change_accounts(root, rotation, plan)
    running_on = set(plan.services) - set(changing)
    rotation.install(plan.secrets, {name for service in running_on for name in mounted.get(service, ())})
    installed = datetime.now(UTC)
    yield f"wrote {len(plan.secrets)} files of secrets/"
    if "minio" in changing:
        _compose(root, "restart", "minio")
        _start(root, ["minio"])
        yield "MinIO: the root account has a new password; sessions have ended"
    for wave in _WAVES:
        _start(root, [name for name in stopped if name in wave])
    yield from _end_accounts(root, rotation, plan, installed)
    _start(root, stopped)
    if stopped:
        yield f"started: {', '.join(stopped)}"
    if "certificates" in plan.groups:
        yield from _replace_authority(root, settings)
    rotation.end()


def _end_accounts(root: Path, rotation: Rotation, plan: Plan, installed: datetime) -> Iterator[str]:
    """Remove accounts that are not the platform's, and the former ones of jobs unless an attempt uses them."""
    if not _OF_JOBS & set(plan.groups):
        return
    waits = "gateway" in plan.services and bool(_attempts_before(root, installed))
    yield from _forget(root, plan.groups, rotation, jobs=not waits)
    if not waits:
        rotation.stop_waiting()
        return
    rotation.wait()
    yield (
        "kept the former accounts of jobs for attempts that are running: when they have ended, "
        f"`make rotate ONLY={FORMER}` removes these accounts"
    )


def _change_accounts(root: Path, rotation: Rotation, plan: Plan) -> Iterator[str]:
    if {"postgres", "minio"} & set(plan.groups):
        yield from _step(root, rotation, "storage-init", "storage")
    if "people" in plan.groups:
        folder = "/rotation/new" if "postgres" in plan.groups else "/run/secrets"
        account = ["--env", f"PGSERVICEFILE={folder}/postgres_gateway"]
        yield from _step(root, rotation, "storage-init", "people", options=account)
    if "mlflow" in plan.groups:
        account = ["--env", "PGSERVICEFILE=/rotation/new/postgres_mlflow"] if "postgres" in plan.groups else []
        yield from _step(root, rotation, "mlflow-migrate", "tracking", options=account)


def _forget(root: Path, groups: Collection[str], rotation: Rotation, *, jobs: bool) -> Iterator[str]:
    if "minio" in groups:
        yield from _step(root, rotation, "storage-init", "forget-keys", *(["jobs"] if jobs else []))
    if "mlflow" in groups and jobs:
        yield from _step(root, rotation, "mlflow-migrate", "forget-password")


def _step(root: Path, rotation: Rotation, service: str, *command: str, options: Collection[str] = ()) -> Iterator[str]:
    """Run one step in a one-shot service, and yield what it prints.

    Raises:
        HostError: it failed.
    """
    mount = ["--volume", f"{rotation.folder}:/rotation:ro"] if rotation.plan else []
    program = ["python", "-m", "mlplatform.services.rotation", *command]
    output = _compose(root, "run", "--rm", "--no-TTY", "--no-deps", *mount, *options, service, *program)
    yield from output.splitlines()


def _check_ready(root: Path, settings: StackSettings, groups: Collection[str]) -> tuple[str, ...]:
    """Return the services that are running.

    Raises:
        HostError: one of those that own accounts is not, or a joined host would keep former secrets.
    """
    running = stack_compose.running(root)
    needed = {"postgres", *_own_store(settings)} | {
        service.name
        for service in services.started(settings, services.profiles_of(settings))
        if service.name in ("gateway", "mlflow", "grafana", "proxy", "ray-head")
    }
    if missing := sorted(needed - running):
        raise HostError(f"Secrets are rotated while the stack runs, and {missing[0]} does not: run `make up` first.")
    if "hub" in running and {"minio", "mlflow", "ray"} & set(groups) and (joined := hosts.joined(root)):
        raise HostError(
            f"Workers on other hosts have copies of the secrets of jobs: {', '.join(joined)}. Run `make leave` there "
            "and `make remove-host` here, then `make rotate`, and let them join again."
        )
    return tuple(sorted(running))


def _check_former(root: Path, since: datetime) -> None:
    """Refuse a second rotation while attempts use accounts from before the first.

    Raises:
        HostError: there are such attempts.
    """
    if open_ones := _attempts_before(root, since):
        raise HostError(
            f"{len(open_ones)} attempts use accounts from before the last rotation ({', '.join(open_ones[:3])}): wait "
            "until they have ended, or stop them with `mlplatform stop`."
        )


def _end_former(root: Path, rotation: Rotation) -> Iterator[str]:
    """Remove what rotations and people left: former accounts of jobs, and keys that the platform did not make."""
    since = rotation.waiting_since
    open_ones = _attempts_before(root, since) if since else []
    if open_ones:
        yield f"{len(open_ones)} attempts use the former accounts, which are kept: {', '.join(open_ones[:5])}"
    groups = {"minio", "mlflow"} & stack_compose.running(root)
    yield from _forget(root, groups, rotation, jobs=not open_ones)
    if since and not open_ones:
        if "mlflow" in groups:
            # It remembers for ten minutes which passwords were right.
            _compose(root, "restart", "mlflow")
            _start(root, ["mlflow"])
            yield "restarted mlflow"
        rotation.stop_waiting()
        rotation.end()


def _attempts_before(root: Path, moment: datetime) -> list[str]:
    """Return the jobs with an attempt that started before a moment and has not ended."""
    with Jobs(client_settings(root)) as jobs:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                return [
                    job.id
                    for job in jobs.list()
                    if job.status not in ENDED
                    and any(each.outcome is None and each.created < moment for each in jobs.attempts(job.id))
                ]
            except PlatformError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(1)


def _reset_grafana(settings: StackSettings, rotation: Rotation) -> None:
    """Change the administrator's password in Grafana's own database.

    Raises:
        HostError: Grafana's command failed.
    """
    command = ("grafana", "cli", "admin", "reset-admin-password", "--password-from-stdin")
    container = ("docker", "exec", "--interactive", f"{settings.prefix}grafana")
    _run([*container, *command], rotation.new("grafana_password"))


def _replace_authority(root: Path, settings: StackSettings) -> Iterator[str]:
    """Let the TLS entrance generate another authority, and write that one's certificate to the checkout."""
    if settings.acme_email:
        yield "certificates: kept, because those by ACME are renewed by themselves"
        return
    _run(["docker", "exec", f"{settings.prefix}proxy", "rm", "-rf", *_AUTHORITY])
    _compose(root, "restart", "proxy")
    _start(root, ["proxy"])
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            found = entrance.write_certificates(root, settings)
            break
        except HostError:
            if time.monotonic() > deadline:
                raise
        time.sleep(1)
    yield f"certificates: a new authority, SHA-256 fingerprint {found}; give clients the new {entrance.CERTIFICATE}"


def _mounted(root: Path) -> dict[str, set[str]]:
    """Return the files of each service's secrets."""
    config = json.loads(_compose(root, "config", "--format", "json"))
    files = {source: Path(secret["file"]).name for source, secret in config["secrets"].items()}
    return {
        name: {files[secret["source"]] for secret in service.get("secrets") or []}
        for name, service in config["services"].items()
    }


def _start(root: Path, names: Collection[str]) -> None:
    """Start stopped containers as they are, and wait until they are healthy."""
    if names:
        options = ("--detach", "--no-build", "--no-recreate", "--no-deps", "--wait", "--wait-timeout")
        _compose(root, "up", *options, str(_START_SECONDS), *names)


def _compose(root: Path, *arguments: str) -> str:
    return _run(compose(root, "--profile", "*", *arguments))


def _run(command: list[str], data: str | None = None) -> str:
    """Run a command and return its output.

    Raises:
        HostError: it failed; `make rotate` resumes.
    """
    result = subprocess.run(command, input=data or "", capture_output=True, text=True, check=False)
    if result.returncode:
        last = "\n".join((result.stdout + result.stderr).strip().splitlines()[-5:])
        raise HostError(f"The rotation is not complete: correct this, then run `make rotate` again.\n{last}")
    return result.stdout
