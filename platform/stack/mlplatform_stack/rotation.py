"""Change of the stack's generated secrets, `make rotate`.

The new secrets are complete in `secrets/next/` before anything else changes. That folder is the only state, and each
step after it may be repeated, so the same command completes a rotation that was killed, with the same secrets:

1. Containers that read a changed secret are removed, those of the stores last, and the stores start again.
2. One one-shot, which reads the new secrets and the present ones, sets those of Postgres (`bootstrap/rotation.py`).
3. The new files are copied over the present ones.
4. The stack starts. Its own one-shots set the accounts of the object store and MLflow, as at every start.

Open jobs continue as their next attempt if Ray's containers are among them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from mlplatform.errors import HostError, SettingsError
from mlplatform.files import atomic
from mlplatform_stack import checkout, entrance, secrets_folder, services, unfinished
from mlplatform_stack import compose as stack_compose
from mlplatform_stack.docker import compose, output, running
from mlplatform_stack.hosts import verbs as hosts
from mlplatform_stack.secrets_folder import FILES, S3_ROLES, TO_FILL_IN, write_missing
from mlplatform_stack.settings import StackSettings

NOT_ROTATED = {*TO_FILL_IN, "backup_password"}
"""Files that a rotation keeps: external services issue those to fill in, whose content an operator replaces and runs
`make up`; and backups that exist are encrypted with the password, which `restic key passwd` changes in each."""

_CERTIFICATES = "certificates"
"""Name in ONLY= of the authority of the TLS entrance, which is not a file of `secrets/`."""

_AUTHORITY = ("/data/caddy/pki/authorities/local", "/data/caddy/certificates/local")
"""Folders of the entrance with the key of its own authority, and the certificates that this has issued."""

_GRAFANA = "grafana_password"

_ONE_SHOT = "storage-init"


def rotate(root: Path, only: str = "") -> Iterator[str]:
    """Change the secrets of a running stack, or complete a rotation that was interrupted; one at a time.

    Args:
        only: first words of the names of secrets, comma-separated, as in "store,mlflow"; empty for all.

    Yields:
        A line per step, for display.

    Raises:
        SettingsError: no secret has such a name.
        HostError: the stack does not run, another change of it was interrupted, or a step failed.
    """
    unfinished.check(root, "rotate")
    settings = StackSettings.load(root / ".env")
    with atomic.alone(root / unfinished.ROTATION):
        if unfinished.has(root, "rotate"):
            yield "completing the rotation that was interrupted"
        else:
            yield from _begin(root, settings, only)
        if unfinished.has(root, "rotate"):
            try:
                yield from _apply(root, settings)
            except HostError as error:
                raise HostError(
                    f"The rotation is not complete: correct this, then run `make rotate` again. {error}"
                ) from error


def chosen(only: str, files: Collection[str] = tuple(FILES)) -> tuple[set[str], bool]:
    """Return the secrets that ONLY= names, or all, and whether it includes the certificates of the TLS entrance.

    Args:
        only: first words of names.
        files: those of `secrets/`.

    Raises:
        SettingsError: no secret has such a name.
    """
    kinds: dict[str, set[str]] = {_CERTIFICATES: set()}
    for name in files:
        if name not in NOT_ROTATED:
            kinds.setdefault(name.partition("_")[0], set()).add(name)
    wanted = {part.strip() for part in only.split(",")} - {""} or set(kinds)
    if unknown := sorted(wanted - set(kinds)):
        raise SettingsError(
            f"ONLY={only}: no generated secret is called {unknown[0]}; use some of {', '.join(kinds)}, separated by "
            "commas."
        )
    return {name for kind in wanted for name in kinds[kind]}, _CERTIFICATES in wanted


def generate(folder: Path, names: Collection[str]) -> None:
    """Write new secrets to `folder`, which appears whole or not at all."""
    with atomic.new_folder(folder) as draft:
        write_missing(draft, names)
        # The one-shot's user reads this folder, which is mounted without the one around it.
        draft.chmod(0o755)


def install(folder: Path) -> None:
    """Copy the files of `folder` over those of the folder that contains it."""
    for path in folder.iterdir():
        with atomic.new_file(folder.parent / path.name) as draft:
            shutil.copy(path, draft)


def readers(config: dict[str, Any], names: Collection[str]) -> list[str]:
    """Return the services that mount one of these secrets.

    Args:
        config: output of `docker compose config --format json`.
        names: files of `secrets/`.
    """
    return sorted(service for service, files in _mounted(config).items() if files & set(names))


def _mounted(config: dict[str, Any]) -> dict[str, set[str]]:
    """Return the files that each service mounts as secrets, which may have other names in the compose files."""
    files = {source: Path(secret["file"]).name for source, secret in config["secrets"].items()}
    return {
        name: {files[secret["source"]] for secret in service.get("secrets") or []}
        for name, service in config["services"].items()
    }


def _begin(root: Path, settings: StackSettings, only: str) -> Iterator[str]:
    names, certificates = chosen(only, secrets_folder.names(root))
    up = running(root)
    if "postgres" not in up:
        raise HostError("The stack does not run, so its secrets cannot be changed: run `make up` first.")
    if "hub" in up and names & set(hosts.SECRETS) and (joined := hosts.joined(root)):
        raise HostError(
            f"Workers on other hosts have copies of the secrets of jobs: {', '.join(joined)}. Run `make leave` there "
            "and `make remove-host` here, then `make rotate`, and let them join again."
        )
    if "grafana" not in up:
        names -= {_GRAFANA}  # its own database has the password, and only Grafana changes that
    if settings.s3_endpoint_url:
        names -= {f"s3_{role}" for role in S3_ROLES}  # that server's operator changes them
    if certificates and "proxy" in up:
        yield from _replace_authority(root, settings)
    elif not names:
        raise HostError(
            f"ONLY={only} changes nothing here: Grafana and the TLS entrance have to run for it, and the operator of "
            "another S3 server changes its accounts."
        )
    if names:
        generate(root / unfinished.ROTATION, names)
        yield f"generated {len(names)} new secrets"


def _apply(root: Path, settings: StackSettings) -> Iterator[str]:
    folder = root / unfinished.ROTATION
    names = {path.name for path in folder.iterdir()}
    config = json.loads(_compose(root, "config", "--format", "json"))
    reading = readers(config, names)
    stores = services.stores(settings)
    yield f"stopping what reads them: {', '.join(reading)}"
    # The stores last, because jobs and services write their last results as they stop.
    _remove(root, [name for name in reading if name not in stores])
    _remove(root, [name for name in reading if name in stores])
    _compose(root, "up", "--detach", "--no-build", "--no-recreate", "--no-deps", "--wait", *stores)
    yield from _set(root, config, names)
    install(folder)
    yield f"wrote {len(names)} files of secrets/"
    # These have mounted the former files again.
    _remove(root, [name for name in reading if name in stores])
    stack_compose.up(root, checkout.started(root)["only"])
    if _GRAFANA in names:
        command = ("grafana", "cli", "admin", "reset-admin-password", "--password-from-stdin")
        _compose(root, "exec", "--no-TTY", "grafana", *command, input=(folder / _GRAFANA).read_text())
        yield "Grafana: admin has a new password"
    shutil.rmtree(folder)
    yield "the stack runs with the new secrets"


def _set(root: Path, config: dict[str, Any], names: Collection[str]) -> Iterator[str]:
    """Run the one-shot with the new secrets and the present ones, and yield what it prints."""
    folder = root / unfinished.ROTATION
    present = sorted(set(names) - _mounted(config)[_ONE_SHOT])
    mounts = [f"{folder}:/run/next:ro", *(f"{folder.parent / name}:/run/secrets/{name}:ro" for name in present)]
    options = [word for mount in mounts for word in ("--volume", mount)]
    program = ("python", "-m", "mlplatform_stack.bootstrap.rotation")
    yield from _compose(root, "run", "--rm", "--no-TTY", "--no-deps", *options, _ONE_SHOT, *program).splitlines()


def _remove(root: Path, names: Collection[str]) -> None:
    """Stop and remove containers: a started one would keep the files that it mounted when it was created."""
    found = set(_compose(root, "ps", "--all", "--services").split()) & set(names)
    if found:
        _compose(root, "rm", "--stop", "--force", *sorted(found))


def _replace_authority(root: Path, settings: StackSettings) -> Iterator[str]:
    """Let the TLS entrance generate another authority, and write that one's certificate to the checkout."""
    if settings.acme_email:
        yield "certificates: kept, because those by ACME are renewed by themselves"
        return
    _compose(root, "exec", "--no-TTY", "proxy", "rm", "-rf", *_AUTHORITY)
    _compose(root, "restart", "proxy")
    # It is healthy once it answers with TLS, for which it has made another authority.
    _compose(root, "up", "--detach", "--no-build", "--no-recreate", "--no-deps", "--wait", "proxy")
    found = entrance.write_certificates(root)
    yield f"certificates: a new authority, SHA-256 fingerprint {found}; give clients the new {entrance.CERTIFICATE}"


def _compose(root: Path, *arguments: str, **options: Any) -> str:
    return output(*compose(root, "--profile", "*", *arguments), **options)
