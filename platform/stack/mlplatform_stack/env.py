"""The host's `.env`, sized for its hardware, and the settings of a client on this host."""

from __future__ import annotations

import getpass
import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform.settings.environment import shell_environment
from mlplatform.settings.job import Settings
from mlplatform_stack import checkout, env_file, generated, secrets_folder, sizing
from mlplatform_stack.host import Host
from mlplatform_stack.settings import LOOPBACK, StackSettings

_READ_BY_SERVICES = ("docker", "images", "platform")
"""Folders of the checkout that are mounted into services or copied into images with the modes of their files."""


def write_env(root: Path, host: Host) -> list[str]:
    """Write `.env` and `secrets/` where they are missing, and the generated files where they have changed.

    Whatever the umask with which the checkout was made, services and builds can read their files afterwards.

    An existing `.env` changes in MLPLATFORM_VERSION, the tag of the images that this checkout builds: otherwise that
    line would keep the version of the checkout that wrote it. If WORKER_LAYOUT now means another number of workers than
    that among which the host was divided, the sizes of the workers change, unless a person has changed one of them.

    Returns:
        One line per file or setting that was written, for display.

    Raises:
        HostError: a file belongs to another person and cannot be read by services.
    """
    _make_readable(root)
    written = []
    file = root / ".env"
    if not file.exists():
        choices = [*sizing.choices(host), *_person(), *mirrors()]
        values = {choice.setting: choice.value for choice in choices}
        atomic.write(file, env_file.changed((root / ".env.example").read_text(), values))
        written.append(".env for this host:")
        written += [f"  {choice.setting}={choice.value}: {choice.reason}" for choice in choices if choice.value]
    written += _write_version(file, checkout_version(root))
    written += fill(file)
    settings = StackSettings.load(file)
    names = secrets_folder.names(root)
    written += [f"secrets/{name}" for name in secrets_folder.write_missing(root / "secrets", names)]
    written += generated.write(root, settings, host, checkout.started(root)["only"])
    return written + _divide(file, host, generated.number_of_workers(root))


def checkout_version(root: Path) -> str:
    """Return the version of a checkout: that of its Python distribution."""
    return str(tomllib.loads((root / "platform" / "pyproject.toml").read_text())["project"]["version"])


def _make_readable(root: Path) -> None:
    """Let every user read what services mount and images contain; after a umask such as 077, only its owner can."""
    paths = [path for name in _READ_BY_SERVICES for path in (root / name, *(root / name).rglob("*"))]
    try:
        for path in paths:
            if path.exists() and not path.is_symlink():
                mode = path.stat().st_mode
                if (wanted := mode | 0o044 | (0o011 if mode & 0o100 else 0)) != mode:
                    path.chmod(stat.S_IMODE(wanted))
    except PermissionError as error:
        folders = " ".join(_READ_BY_SERVICES)
        raise HostError(f"Services cannot read {error.filename}: run `sudo chmod -R go+rX {folders}`.") from error


def _write_version(file: Path, version: str) -> list[str]:
    former = re.search(r"^MLPLATFORM_VERSION=(.+)$", file.read_text(), re.M)
    changed = env_file.change(file, {"MLPLATFORM_VERSION": version})
    return [f"MLPLATFORM_VERSION={version} into .env, which had {former[1]}"] if changed and former else []


def fill(file: Path) -> list[str]:
    """Write the defaults of settings that are empty, which Compose would take as they are."""
    empty = env_file.defaults_of_empty(file.read_text())
    env_file.change(file, empty)
    return [f"{name}={value} into .env, where it was empty" for name, value in empty.items()]


def _divide(file: Path, host: Host, count: int) -> list[str]:
    """Divide the host among this number of workers, if the sizes are those for another number."""
    text, wanted = file.read_text(), sizing.sizes_of_workers(host, count)
    present = [(re.findall(rf"^{choice.setting}=(.*)$", text, re.M) or [""])[-1] for choice in wanted]
    others = (sizing.sizes_of_workers(host, number) for number in range(1, max(host.gpus, 2) + 1))
    if present not in [[choice.value for choice in sizes] for sizes in others]:
        return []
    if not env_file.change(file, {choice.setting: choice.value for choice in wanted}):
        return []
    lines = [f"  {choice.setting}={choice.value}: {choice.reason}" for choice in wanted]
    return [f"the sizes of {count} worker{'s' if count > 1 else ''} into .env:", *lines]


def client_settings(root: Path, origin: str = f"http://{LOOPBACK}") -> Settings:
    """Return a client's settings on this host, or on a laptop with the forwarded ports and a copy of `secrets/`.

    Args:
        origin: scheme and host of the services' ports; by default those on loopback.
    """
    stack = StackSettings.load(root / ".env")
    secrets = root / "secrets"
    return Settings.load(
        tracking_uri=f"{origin}:{stack.mlflow_port}",
        ray_address=f"{origin}:{stack.ray_port}",
        ray_auth_token_path=secrets / "ray_token",
        storage="s3://ray",
        datasets="s3://datasets",
        platform_tracking_uri=None,
        tracking_page=None,
        shared=None,
        s3_endpoint=stack.s3_endpoint_url or f"{origin}:{stack.s3_port}",
        s3_region="us-east-1",
        s3_credentials=secrets / "s3_people",
        driver_label="role=worker",
    )


def _person() -> Iterator[sizing.Choice]:
    """Yield the setting that names the person in front of the notebook; none for an account without a name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        return
    # Compose reads other characters in an unquoted value as variables, quotes or comments.
    if re.fullmatch(r"[\w.@+-]+", user, re.ASCII):
        yield sizing.Choice("NOTEBOOK_USER", user, "who runs `make env`; the notebook's jobs and runs show this name")


def mirrors() -> Iterator[sizing.Choice]:
    """Yield the indexes of packages that this shell uses, but those whose address has a password."""
    for setting in ("PIP_INDEX_URL", "TORCH_INDEX_URL", "GOPROXY"):
        if re.fullmatch(r"[\w.:/,|+-]+", value := shell_environment().get(setting, ""), re.ASCII):
            yield sizing.Choice(setting, value, "builds use the same as this shell")
