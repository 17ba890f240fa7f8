"""Start of the stack with Docker Compose."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
from pathlib import Path

from mlplatform.contract import BACKUP_SERVERS
from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform.settings.environment import environment
from mlplatform.settings.services import OfGateway
from mlplatform_stack import checkout, declared, entrance, env_file, generated, images
from mlplatform_stack.docker import compose, failed
from mlplatform_stack.host import this_host
from mlplatform_stack.services import GPU_METRICS, exporters, profiles_of, start_variables
from mlplatform_stack.settings import StackSettings

START_TIMEOUT = 300
"""Seconds after which a service that is still not healthy counts as failed."""


def up(root: Path, only: str | None = None) -> None:
    """Start the stack, or the half that `only` names, and wait until every service is healthy.

    The exporter of GPU metrics starts last; nothing else needs it.

    Raises:
        SettingsError: `only` is unknown.
        HostError: an image cannot be pulled, the folder of backups cannot be made, or a service did not become healthy.
    """
    settings = StackSettings.load(root / ".env")
    profiles = profiles_of(settings, only)
    generated.write(root, settings, this_host(), only)
    variables = {
        **environment(),
        **start_variables(settings, only),
        "COMPOSE_PROFILES": ",".join(profile for profile in profiles if profile != GPU_METRICS),
        # Otherwise exporters would label the host's GPUs with the id of their container.
        "HOST_NAME": socket.gethostname(),
        **entrance.variables(settings),
        **timer_variables(root, settings),
        "ALERTS_DIGEST": _digest(root / "secrets" / "alertmanager.yml"),
    }
    # Outside of Compose, so that no `down --volumes` removes the data set.
    subprocess.run(["docker", "volume", "create", settings.food11_volume], check=True, stdout=subprocess.DEVNULL)
    images.pull_missing(root, only)
    # Only its sections: it would restart with each change of another one, and act on lines that are none.
    of_gateway = env_file.lines_of((root / ".env").read_text(), OfGateway.variables())
    atomic.write(root / "compose" / "gateway.generated.env", of_gateway)
    command = compose(root, "up", "--detach", "--no-build", "--remove-orphans", "--wait", "--wait-timeout")
    result = subprocess.run([*command, str(START_TIMEOUT)], env=variables, check=False)
    if result.returncode:
        raise HostError(
            f"The stack did not become healthy within {START_TIMEOUT} s: `make status` shows the state of each "
            f"container and `make logs` its last lines.{_last_lines(root)}"
        )
    checkout.record_start(root, only)
    last = sorted(set(exporters(root)) & set(declared.services(root))) if GPU_METRICS in profiles else []
    command = compose(root, "up", "--detach", "--no-build", "--no-deps", *last)
    if last and subprocess.run(command, env=variables, check=False).returncode:
        print(
            f"Note: {', '.join(last)} did not start (the reason is above), so pages show GPUs as Ray measures them: "
            f"correct it, or remove {GPU_METRICS} from COMPOSE_PROFILES in .env.",
            file=sys.stderr,
        )


def timer_variables(root: Path, settings: StackSettings) -> dict[str, str]:
    """Return the variables of the timer of backups, and make the folder that it writes to; none if BACKUP_TO is empty.

    Raises:
        HostError: the folder cannot be made.
    """
    if not settings.backup_to:
        return {}
    # The service has the file `.env` mounted, which `make env` and editors replace by another one: it restarts then.
    digest = {"SETTINGS_DIGEST": _digest(root / ".env")}
    if settings.backup_to.startswith(BACKUP_SERVERS):
        return digest
    folder = root / Path(settings.backup_to).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(
            f"The folder {folder} for backups cannot be made ({error.strerror}): make it yourself, or set BACKUP_TO in "
            ".env to another one."
        ) from error
    return {**digest, "BACKUP_FOLDER": str(folder)}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def _last_lines(root: Path) -> str:
    """Return the last lines of each container that exited with an error or is unhealthy."""
    parts = []
    for _, name, state in failed(root):
        command = ["docker", "logs", "--tail", "5", name]
        logs = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        parts.append(f"\n{name} {state}:\n{logs.stdout.strip()}")
    return "".join(parts)
