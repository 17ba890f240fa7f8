"""Notebooks of people on this host, `make notebook`: one service per person, in a compose file of their own.

Each has its own volumes, token, port on loopback and network. The gateway, MLflow and the object store are connected
to that network while they run (`connect`) instead of naming it in the file, because Compose would restart all three
for each person.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mlplatform.contract import PERSON_NAME
from mlplatform.errors import HostError, SettingsError
from mlplatform.files import atomic
from mlplatform.settings.environment import environment
from mlplatform_stack import entrance, env_file, images, networks, unfinished
from mlplatform_stack.credential_files import password
from mlplatform_stack.docker import compose, containers, output, running, service
from mlplatform_stack.services import NOTEBOOK, STORE, Page, pages
from mlplatform_stack.settings import LOOPBACK, Accelerator, StackSettings

FILE = Path("compose") / "notebook.generated.yaml"
"""The file, in a checkout; its first line is a comment, the rest JSON, a subset of YAML."""

HOME = "/home/jovyan"

_PREFIX = "notebook-"
USED = ("gateway", "mlflow", STORE)
"""Services that notebooks use. Each person's network has them under these names."""

_WAITING = ("--wait", "--wait-timeout", "300")


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


def render(accelerator: Accelerator, ports: Mapping[str, int]) -> str:
    """Return the compose file with the notebooks of people at ports of loopback."""
    services: dict[str, Any] = {
        service_name(person): _service(person, accelerator, port) for person, port in sorted(ports.items())
    }
    homes = [volume_names(person)[0] for person in sorted(ports)]
    for name, mode in (("backup", ":ro"), ("backup-timer", ":ro"), ("restore", "")):
        services[name] = {"volumes": [f"{home}:/volumes/{home}{mode}" for home in homes]}
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


def add(root: Path, person: str) -> tuple[str, bool]:
    """Make a person's notebook, or make a missing token of an existing one again, and start it if the stack runs.

    Its port stays the same, unless another program has taken it.

    Returns:
        The address of its page, with the token; and False if the stack does not run, so that `make up` will start it.

    Raises:
        SettingsError: the name is not one of a person.
        HostError: another change of the stack was interrupted, the image is missing, or the notebook did not start.
    """
    if PERSON_NAME.fullmatch(person) is None:
        raise SettingsError(
            f"Invalid name of a person {person!r}: use the one of `mlplatform people add`, 2 to 30 lower-case letters, "
            "digits and single '-', as in PERSON=alice."
        )
    unfinished.check(root)
    settings = StackSettings.load(root / ".env")
    name, before, up = service_name(person), read_ports(root), running(root)
    if not images.is_present(image := f"mlplatform-ray:{settings.mlplatform_version}"):
        raise HostError(f"The image {image} is not built: run `make build`.")
    port = before.get(person)
    if port is None or (name not in up and networks.bind_error(LOOPBACK, port)):
        port = free_port(root, settings, before.values())
    renewed = _write_token(root, person)
    write(root, settings, {**before, person: port})
    started = bool(up & set(USED))
    if started:
        options = ["--force-recreate"] if renewed else []
        _compose(root, "up", "--detach", "--no-build", "--no-deps", *_WAITING, *options, name)
        connect(root)
    token = (root / "secrets" / token_name(person)).read_text()
    return f"http://{name}.localhost:{port}/lab?token={token}", started


def remove(root: Path, person: str) -> tuple[str, ...]:
    """Remove a person's notebook and its token, and return the volumes with the files, which stay.

    Without notebooks of people, the stack has the shared one again.

    Raises:
        HostError: the person has no notebook, or Docker failed.
    """
    unfinished.check(root)
    settings = StackSettings.load(root / ".env")
    ports = read_ports(root)
    if person not in ports:
        present = f"those of {', '.join(sorted(ports))}" if ports else "none of people"
        raise HostError(f"{person!r} has no notebook: the stack has {present}.")
    _compose(root, "rm", "--stop", "--force", service_name(person))
    network = network_name(settings, person)
    for container in containers(settings.stack_prefix):
        if service(container) in USED and network in _networks(container):
            output("docker", "network", "disconnect", "--force", network, container["Id"])
    if network in output("docker", "network", "ls", "--format", "{{.Name}}").split():
        output("docker", "network", "rm", network)
    left = {name: port for name, port in ports.items() if name != person}
    if left:
        write(root, settings, left)
    else:
        env_file.change(root / ".env", {"NOTEBOOK_LAYOUT": "shared"})
        (root / FILE).unlink(missing_ok=True)
    (root / "secrets" / token_name(person)).unlink(missing_ok=True)
    return tuple(f"{settings.stack_prefix}mlplatform_{volume}" for volume in volume_names(person))


def before_start(root: Path) -> None:
    """Prepare the start of the stack: the shared notebook ends where people have their own."""
    if read_ports(root):
        _compose(root, "rm", "--stop", "--force", NOTEBOOK)


def connect(root: Path) -> None:
    """Connect the services that notebooks use to the network of each person, where they are not.

    Raises:
        HostError: Docker failed.
    """
    settings = StackSettings.load(root / ".env")
    missing = list(unconnected(root, settings))
    ids = {service(container): container["Id"] for container in containers(settings.stack_prefix)} if missing else {}
    for _, name, network in missing:
        output("docker", "network", "connect", "--alias", name, network, ids[name])


def unconnected(root: Path, settings: StackSettings) -> Iterator[tuple[str, str, str]]:
    """Yield each person, service and network that are not connected, of notebooks and services that have containers."""
    people = read_ports(root)
    try:
        present = {service(found): _networks(found) for found in containers(settings.stack_prefix)} if people else {}
    except (HostError, FileNotFoundError):
        return  # no engine runs here, which the checks of a start report
    for person in people:
        network = network_name(settings, person)
        if network in present.get(service_name(person), ()):
            for name in USED:
                if name in present and network not in present[name]:
                    yield person, name, network


def network_name(settings: StackSettings, person: str) -> str:
    """Return the name of the network with a person's notebook."""
    return f"{settings.stack_prefix}mlplatform_{service_name(person)}"


def pages_of_people(root: Path) -> list[Page]:
    """Return the pages of the notebooks of people, by name."""
    return [
        Page(
            *(f"JupyterLab of {person}", service_name(person), ""),
            login=f"token in secrets/{token_name(person)}",
            name=service_name(person),
            port=port,
        )
        for person, port in sorted(read_ports(root).items())
    ]


def free_port(root: Path, settings: StackSettings, taken: Iterable[int]) -> int:
    """Return a port above that of the shared notebook, which nothing uses.

    Raises:
        HostError: there is none.
    """
    used = {*taken, *(page.port for page in pages(root)), settings.https_port, settings.hub_port}
    for port in range(settings.notebook_port + 1, min(settings.notebook_port + 1000, 65536)):
        if port not in used and not networks.bind_error(LOOPBACK, port):
            return port
    raise HostError(f"No port above NOTEBOOK_PORT={settings.notebook_port} is free: set it in .env to another one.")


def _write_token(root: Path, person: str) -> bool:
    """Write the token if it is missing; return whether it was."""
    path = root / "secrets" / token_name(person)
    if path.is_file() and path.stat().st_size:
        return False
    # Readable for the container's user, as all secrets; the folder's mode keeps other users out.
    atomic.write(path, password(), 0o444)
    return True


def _networks(container: dict[str, Any]) -> set[str]:
    return set(container["NetworkSettings"]["Networks"])


def _compose(root: Path, *arguments: str) -> str:
    # As `make up` passes them: with others, it would create the notebook again.
    variables = {**environment(), **entrance.variables(StackSettings.load(root / ".env"))}
    return output(*compose(root, "--profile", "*", *arguments), env=variables)
