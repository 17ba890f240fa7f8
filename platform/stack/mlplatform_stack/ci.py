"""Run of one job on a small stack of its own, which is removed afterwards: for the CI of a user's repository.

The stack has its own folder, and with it passwords, settings, volumes and free ports, so it disturbs no other stack of
the host. Its images are those that `make build` has built.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mlplatform.api.jobs import Job
from mlplatform.client import job_file
from mlplatform.client.jobs import Jobs
from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform.secrets.credentials import read_mlflow_account
from mlplatform.settings.environment import in_the_way, shell_environment
from mlplatform_stack import checkout, networks, preflight, sizing
from mlplatform_stack import compose as stack_compose
from mlplatform_stack import env as stack_env
from mlplatform_stack.docker import compose
from mlplatform_stack.host import Host, this_host
from mlplatform_stack.settings import LOOPBACK, StackSettings

FOLDER = ".ci-stack"
"""The stack's folder in the checkout; git ignores it."""

_RUNNER = Host(memory=7 * sizing.GIB, cpus=2)
"""A small runner, for which the stack is sized on any host."""

_COPIED = ("compose", "docker", ".env.example", "platform/pyproject.toml")
"""Files of the checkout that a stack with built images needs."""

_PORTS = ("RAY_PORT", "MLFLOW_PORT", "S3_PORT", "S3_CONSOLE_PORT")

_ENDING = (signal.SIGINT, signal.SIGTERM)


def run(root: Path, job: job_file.Submission, check: str, logs: Path) -> int:
    """Start the stack, run a job and then a check, and remove the stack with its volumes, whatever happens.

    Args:
        check: shell command that is run in the job's folder after the job has succeeded; empty for none. Its
            environment names the stack's services, `JOB_ID` the job.
        logs: folder for `job.log` and a file per service.

    Returns:
        The exit status of the job's entry point, or that of the check if the job has succeeded.

    Raises:
        HostError: the stack cannot be started or removed.
        JobError: the job is rejected.
    """
    for number in _ENDING:
        # As an exception does, also where the shell ignores Ctrl-C.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    note = f"Another `make ci` uses {root}; this one starts when that has ended."
    with atomic.alone(checkout.state_folder(root) / "ci" / FOLDER, note), _stack(root, logs) as stack:
        with Jobs(stack_env.client_settings(stack)) as client:
            done = _run_job(client, job, logs)
        if done.status != "SUCCEEDED":
            return _of_shell(done.exit_code or 1)
        return _check(check, stack, job, done.id) if check else 0


@contextmanager
def _stack(root: Path, logs: Path) -> Iterator[Path]:
    """Start the stack in its folder, keep the logs, and remove it; nothing interrupts the removal."""
    stack = root / FOLDER
    _remove(stack)  # that of a run which was killed
    try:
        _write_files(root, stack)
        preflight.check_host(stack)
        stack_compose.up(stack)
        yield stack
    finally:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        _remove(stack, logs)


def _write_files(root: Path, stack: Path) -> None:
    """Write the stack's settings and passwords beside a copy of the shipped files."""
    for name in _COPIED:
        source, target = root / name, stack / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    ports = _free_ports(len(_PORTS))
    host = Host(_RUNNER.memory, _RUNNER.cpus, open_files=this_host().open_files)
    values = {choice.setting: choice.value for choice in sizing.choices(host)}
    values |= {name: str(port) for name, port in zip(_PORTS, ports, strict=True)}
    # The prefix names project, containers and volumes; a port that is free now makes it unique on this host.
    prefix = f"ci-{ports[0]}-"
    values |= {"STACK_PREFIX": prefix, "FOOD11_VOLUME": f"{prefix}food11"}
    values |= {"CLUSTER_NETWORK": networks.free_cluster_network()}
    # Its objects are its own.
    values |= {"BIND_ADDRESS": LOOPBACK, "ACME_EMAIL": "", "S3_ENDPOINT_URL": ""}
    # Its backups would be among those of the other stack.
    values |= {"BACKUP_TO": ""}
    values |= {"COMPOSE_PROFILES": "tracking,ray", "MLFLOW_WORKERS": "1", "DISK_NEEDED_GB": "2"}
    # The checkout's own settings name images and mirrors. Of two lines for a setting, the last one counts.
    common = root / ".env" if (root / ".env").is_file() else stack / ".env.example"
    lines = [common.read_text(), *(f"{name}={value}" for name, value in values.items())]
    atomic.write(stack / ".env", "\n".join(lines) + "\n")
    stack_env.write_env(stack, host)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as probes:
        opened = [probes.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in opened]


def _run_job(client: Jobs, job: job_file.Submission, logs: Path) -> Job:
    """Run the job to its end; its log is printed and stored."""
    job_id = job_file.submit(client, job)
    print(f"Submitted job {job_id}.", flush=True)
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / "job.log").open("w") as file:
        for line in client.follow(job_id):
            print(line, flush=True)
            print(line, file=file, flush=True)
    done = client.wait(job_id)
    code = f" with exit status {done.exit_code}" if done.exit_code else ""
    print(f"Job {job_id} ended {done.status}{code}. {(done.message.strip().splitlines() or [''])[-1]}", flush=True)
    return done


def _of_shell(status: int) -> int:
    """Return an exit status as a shell reports it: 128 and the number for a signal."""
    return 128 - status if status < 0 else status


def _check(command: str, stack: Path, job: job_file.Submission, job_id: str) -> int:
    user, password = read_mlflow_account(stack / "secrets" / "mlflow_person")
    ours = stack_env.client_settings(stack).environment()
    others = in_the_way(ours)
    variables = {
        **{name: value for name, value in shell_environment().items() if name not in others},
        **ours,
        # MLflow's client reads an account from these, or from the one file in the home folder, which is not ours. The
        # password ends with the stack.
        "MLFLOW_TRACKING_USERNAME": user,
        "MLFLOW_TRACKING_PASSWORD": password,
        "JOB_ID": job_id,
    }
    # For `mlplatform`; a python of the caller takes precedence.
    variables["PATH"] = os.pathsep.join([variables.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    status = subprocess.run(["sh", "-c", command], cwd=job.folder, env=variables, check=False).returncode
    print(f"The check exited with {status}.", flush=True)
    return _of_shell(status)


def _keep_logs(stack: Path, logs: Path) -> None:
    """Write what each container has printed to a file named after its service."""
    listing = _docker(stack, "ps", "--all", "--format", "{{.Service}}")
    for service in listing.stdout.split():
        logs.mkdir(parents=True, exist_ok=True)
        printed = _docker(stack, "logs", "--no-color", "--no-log-prefix", "--timestamps", service)
        (logs / f"{service}.log").write_text(printed.stdout + printed.stderr)
    print(f"Logs: {logs}", flush=True)


def _remove(stack: Path, logs: Path | None = None) -> None:
    """Remove the stack with its volumes and its folder, if there is one; keep its logs.

    Raises:
        HostError: Docker cannot remove it.
    """
    if (stack / ".env").is_file() and shutil.which("docker"):
        if logs:
            _keep_logs(stack, logs)
        done = _docker(stack, "down", "--volumes", "--remove-orphans", "--timeout", "5")
        if done.returncode:
            raise HostError(f"The stack in {stack} cannot be removed ({done.stderr.strip()}): run `make ci` again.")
        volume = StackSettings.load(stack / ".env").food11_volume
        subprocess.run(["docker", "volume", "rm", "--force", volume], capture_output=True, check=False)
    shutil.rmtree(stack, ignore_errors=True)


def _docker(stack: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Docker Compose on the stack, in a session of its own: a terminal sends Ctrl-C to all of its processes."""
    command = compose(stack, "--profile", "*", *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
