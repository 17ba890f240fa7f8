"""Notebooks of people on this host, `make notebook`: made, connected to the services that they use, and removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform.settings.environment import environment
from mlplatform_stack import entrance, images, networks, unfinished
from mlplatform_stack.credential_files import password
from mlplatform_stack.docker import compose, containers, output, running, service
from mlplatform_stack.notebooks import compose_file as notebook_file
from mlplatform_stack.notebooks.compose_file import service_name, token_name
from mlplatform_stack.services import NOTEBOOK, STORE, Page, pages
from mlplatform_stack.settings import LOOPBACK, StackSettings

USED = ("gateway", "mlflow", STORE)
"""Services that notebooks use. Each person's network has them under these names."""

_WAITING = ("--wait", "--wait-timeout", "300")


def add(root: Path, person: str) -> tuple[str, bool]:
    """Make a person's notebook, or make a missing token of an existing one again, and start it if the stack runs.

    Its port stays the same, unless another program has taken it.

    Returns:
        The address of its page, with the token; and False if the stack does not run, so that `make up` will start it.

    Raises:
        SettingsError: the name is not one of a person.
        HostError: another change of the stack was interrupted, the image is missing, or the notebook did not start.
    """
    notebook_file.check_name(person)
    unfinished.check(root)
    settings = StackSettings.load(root / ".env")
    name, before, up = service_name(person), notebook_file.read_ports(root), running(root)
    if not images.is_present(image := f"mlplatform-notebook:{settings.mlplatform_version}"):
        raise HostError(f"The image {image} is not built: run `make build`.")
    port = before.get(person)
    if port is None or (name not in up and networks.bind_error(LOOPBACK, port)):
        port = free_port(root, settings, before.values())
    renewed = _write_token(root, person)
    notebook_file.write(root, settings, {**before, person: port})
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
    ports = notebook_file.read_ports(root)
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
        notebook_file.write(root, settings, left)
    else:
        notebook_file.remove(root)
    (root / "secrets" / token_name(person)).unlink(missing_ok=True)
    return tuple(f"{settings.stack_prefix}mlplatform_{volume}" for volume in notebook_file.volume_names(person))


def before_start(root: Path) -> None:
    """Prepare the start of the stack: the shared notebook ends where people have their own."""
    if notebook_file.read_ports(root):
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
    people = notebook_file.read_ports(root)
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
        for person, port in sorted(notebook_file.read_ports(root).items())
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
