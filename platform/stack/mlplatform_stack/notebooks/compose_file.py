"""Compose file of the notebooks of people, `make notebook`: one service per person.

Each has its own volumes, token, port on loopback and network. The gateway, MLflow and the object store are connected
to that network while they run (`notebooks.py`) instead of naming it here, because Compose would restart all three for
each person.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlplatform.contract import PERSON_NAME
from mlplatform.errors import SettingsError
from mlplatform.files import atomic
from mlplatform_stack import env_file
from mlplatform_stack.settings import Accelerator, StackSettings

FILE = Path("compose") / "notebook.generated.yaml"
"""The file, in a checkout; its first line is a comment, the rest JSON, a subset of YAML."""

HOME = "/home/jovyan"

_PREFIX = "notebook-"


def check_name(person: str) -> str:
    """Return the name of a person.

    Raises:
        SettingsError: nobody can have it.
    """
    if PERSON_NAME.fullmatch(person) is None:
        raise SettingsError(
            f"Invalid name of a person {person!r}: use the one of `mlplatform people add`, 2 to 30 lower-case letters, "
            "digits and single '-', as in PERSON=alice."
        )
    return person


def service_name(person: str) -> str:
    """Return the name of the service with a person's notebook, which its network has, too."""
    return f"{_PREFIX}{person}"


def token_name(person: str) -> str:
    """Return the name of the file in `secrets/` with the token of a person's notebook."""
    return f"notebook_token_{person}"


def volume_names(person: str) -> tuple[str, str]:
    """Return the names of the volumes with a person's files, and with downloaded models."""
    return f"home-{person}", f"cache-{person}"


def read_ports(root: Path) -> dict[str, int]:
    """Return the port of each person's notebook, by name; empty if there are none.

    Raises:
        SettingsError: the file was edited so that it cannot be read.
    """
    file = root / FILE
    if not file.is_file():
        return {}
    try:
        services = json.loads(file.read_text().partition("\n")[2])["services"]
        return {
            name.removeprefix(_PREFIX): int(service["ports"][0].split(":")[1])
            for name, service in services.items()
            if name.startswith(_PREFIX)
        }
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise SettingsError(f"{file} cannot be read: delete it, and run `make notebook` for each person.") from error


def write(root: Path, settings: StackSettings, ports: Mapping[str, int]) -> bool:
    """Write the file for people and their ports, and NOTEBOOK_LAYOUT into `.env`; return whether either has changed."""
    file = root / FILE
    text = render(settings.accelerator, ports)
    changed = not file.is_file() or file.read_text() != text
    if changed:
        atomic.write(file, text)
    return env_file.change(root / ".env", {"NOTEBOOK_LAYOUT": "generated"}) or changed


def remove(root: Path) -> None:
    """Return to the shared notebook: remove the file."""
    env_file.change(root / ".env", {"NOTEBOOK_LAYOUT": "shared"})
    (root / FILE).unlink(missing_ok=True)


def render(accelerator: Accelerator, ports: Mapping[str, int]) -> str:
    """Return the compose file with the notebooks of people at ports of loopback."""
    services: dict[str, Any] = {
        service_name(person): _service(person, accelerator, port) for person, port in sorted(ports.items())
    }
    homes = [volume_names(person)[0] for person in sorted(ports)]
    for service, mode in (("backup", ":ro"), ("backup-timer", ":ro"), ("restore", "")):
        services[service] = {"volumes": [f"{home}:/volumes/{home}{mode}" for home in homes]}
    content = {
        "services": services,
        "networks": {service_name(person): None for person in sorted(ports)},
        "volumes": {volume: None for person in sorted(ports) for volume in volume_names(person)},
        "secrets": {token_name(person): {"file": f"../secrets/{token_name(person)}"} for person in sorted(ports)},
    }
    header = "# Written by `make notebook`: one notebook per person. `make env` writes it again for another version."
    return f"{header}\n{json.dumps(content, indent=2)}\n"


def _service(person: str, accelerator: Accelerator, port: int) -> dict[str, Any]:
    name, (home, cache) = service_name(person), volume_names(person)
    return {
        "extends": {"file": f"accelerator.{accelerator}.yaml", "service": "personal-lab"},
        "hostname": name,
        "environment": {"MLPLATFORM_USER": person},
        "secrets": [{"source": token_name(person), "target": "notebook_token"}],
        "networks": [name],
        "ports": [f"127.0.0.1:{port}:8888"],
        "volumes": [f"{home}:{HOME}", f"{cache}:/cache"],
    }
