"""`mlplatform stack ...`: the stack of containers on this host, as the Makefile's verbs run it."""

from __future__ import annotations

import getpass
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlplatform.cli.output import Json, connection, exports, print_json, print_list, terminal

if TYPE_CHECKING:
    from mlplatform.api.storage import Unneeded


def _with_own_settings(root: Path) -> Path:
    from mlplatform_stack import env, env_file, generated

    root = root.absolute()
    env_file.use_own_settings(root)
    if (root / ".env").is_file():
        env.fill(root / ".env")
    generated.write_missing(root)
    return root


app = typer.Typer(help="The stack of containers on this host (the Makefile's verbs).", no_args_is_help=True)

Root = Annotated[Path, typer.Option(help="Folder of the checkout.", show_default="here", callback=_with_own_settings)]
Only = Annotated[str, typer.Option(help="Half of the stack: tracking or ray; empty for all of it.")]


@app.command()
def env(root: Root = Path()) -> None:
    """Write .env and missing secrets; nothing is overwritten, except the version in .env."""
    from mlplatform_stack import env as stack_env
    from mlplatform_stack.host import this_host

    written = stack_env.write_env(root, this_host())
    for line in written or ["nothing: .env and secrets/ are complete"]:
        print(line if line.startswith(" ") else f"wrote {line}")


@app.command()
def up(root: Root = Path(), only: Only = "") -> None:
    """Check the host, start the stack, wait until it is healthy, and show its addresses."""
    from mlplatform.errors import HostError
    from mlplatform_stack import compose, images, preflight, unfinished
    from mlplatform_stack.hosts import joining

    unfinished.check(root)
    if joining.has_joined(root):
        raise HostError("This checkout's worker has joined another host's stack: run `make leave` first.")
    for sentence in preflight.check_host(root, only):
        print(f"Note: {sentence}", file=sys.stderr)
    compose.up(root, only)
    if removed := images.remove_former(root):
        print(f"Removed {removed} images of former versions.")
    status(root)


@app.command()
def ci(
    job: Annotated[str, typer.Argument(help="`FOLDER -- COMMAND`, or a file or folder as for `mlplatform submit`.")],
    check: Annotated[str, typer.Argument(help="Command that checks the job's run and model; empty for none.")] = "",
    logs: Annotated[Path, typer.Option(help="Folder for the logs of the job and of each service.")] = Path("ci-logs"),
    root: Root = Path(),
) -> None:
    """Run a job and a check on a small stack of its own, remove it, and exit with their status."""
    from mlplatform.client import job_file
    from mlplatform_stack.ci import run

    folder, _, command = job.partition(" -- ")
    found = job_file.submission(Path(folder.strip()).absolute(), **({"entrypoint": command} if command.strip() else {}))
    raise typer.Exit(run(root, found, check, logs.absolute()))


@app.command()
def status(root: Root = Path(), as_json: Json = False) -> None:
    """Show the addresses of the running services, how to log in, and how to reach them from a laptop."""
    from rich.console import Console

    from mlplatform_stack import docker, entrance, services
    from mlplatform_stack.settings import StackSettings

    settings = StackSettings.load(root / ".env")
    running = docker.running(root)
    shown = [page for page in services.pages(root) if page.service in running]
    found = []
    for page in shown:
        address, other = (f"{entrance.origin(settings, name)}:{page.port}" for name in (page.name, ""))
        in_safari = other if ".localhost" in address else ""
        found.append({"page": page.title, "address": address, "in_safari": in_safari, "log_in_with": page.login})
    columns = ("Page", "Address", "in Safari", "Log in with")
    print_list(found, as_json, columns, _cells, "The stack is not running; start it with `make up`.")
    if as_json or not found:
        return
    console = Console(file=terminal())
    for line in entrance.trust_lines(root, settings) if "proxy" in running else ():
        console.print(line, soft_wrap=True)
    # The command on one line whatever the terminal's width, so that it can be copied.
    console.print("\nFrom a laptop, this forwards every page to the same addresses there:")
    host = f"{getpass.getuser()}@{socket.gethostname()}"
    console.print(f"  {services.ssh_line(shown, host)}", soft_wrap=True)


@app.command()
def backup(
    target: Annotated[str, typer.Argument(help="Folder, s3:https://server/bucket/folder or rest:URL.")],
    secrets: Annotated[bool, typer.Option(help="Also save secrets/.")] = False,
    root: Root = Path(),
) -> None:
    """Save databases, objects, settings and the notebook's files while the stack runs."""
    from mlplatform_stack.backup import verbs as stack_backup

    stack_backup.backup(root, target, with_secrets=secrets)


@app.command()
def restore(
    source: Annotated[str, typer.Argument(help="Folder, s3:https://server/bucket/folder or rest:URL.")],
    snapshot: Annotated[str, typer.Option(help="Id of a backup there.")] = "latest",
    force: Annotated[bool, typer.Option(help="Replace existing data.")] = False,
    root: Root = Path(),
) -> None:
    """Verify a backup completely, then replace the stack's data by it and start the stack."""
    from mlplatform_stack.backup import verbs as stack_backup

    for line in stack_backup.restore(root, source, snapshot, force=force):
        print(line)
    status(root)


@app.command()
def prune(
    remove: Annotated[bool, typer.Option("--apply", help="Remove it; without, nothing is changed.")] = False,
    root: Root = Path(),
    as_json: Json = False,
) -> None:
    """List what nobody needs any more, by kind, with the space that it takes."""
    from rich.filesize import decimal

    from mlplatform_stack import prune as stack_prune

    found = stack_prune.plan(root)
    if remove:
        removed = list(_shown(stack_prune.apply(root), sum(one.count for one in found)))
        found = [_sum(kind.kind, [one for one in removed if one.kind == kind.kind]) for kind in found]
    if not as_json:
        found = [*found, _sum("all", found)]
    columns = ("Kind", "Removed" if remove else "Removable", "Size")
    print_list(found, as_json, columns, lambda one: (one.kind, str(one.count), decimal(one.bytes)))
    if not as_json and not remove and any(one.count for one in found):
        print("Nothing was changed; `make prune APPLY=1` removes it.")


@app.command("upgrade")
def upgrade_stack(root: Root = Path()) -> None:
    """Upgrade the running stack to the version checked out, or complete an upgrade that was interrupted."""
    from mlplatform.errors import HostError
    from mlplatform_stack import upgrade
    from mlplatform_stack.hosts import joining

    if joining.has_joined(root):
        raise HostError("This checkout's worker has joined another host's stack: run `make leave` first.")
    if not upgrade.prepare(root):
        print("The stack runs this commit already. To upgrade it, check out another one.")
        return
    upgrade.start_program(root)


@app.command("perform-upgrade", hidden=True)
def perform_upgrade(root: Root = Path()) -> None:
    """Perform or continue the upgrade that was prepared: the program that `upgrade` starts."""
    from mlplatform_stack import upgrade

    print(upgrade.perform(root, lambda sentence: print(f"Upgrade: {sentence}", flush=True)))


@app.command()
def rotate(
    only: Annotated[str, typer.Option(help="First words of names of secrets, comma-separated; empty for all.")] = "",
    root: Root = Path(),
) -> None:
    """Change secrets and certificates of the running stack, or complete a change that was interrupted."""
    from mlplatform_stack import rotation

    for line in rotation.rotate(root, only):
        print(line, flush=True)


@app.command()
def bundle(
    target: Annotated[Path, typer.Argument(help="Archive to write.")] = Path("mlplatform.bundle"),
    root: Root = Path(),
) -> None:
    """Write images and packages into one archive, from which a host without network starts the stack."""
    from mlplatform_stack import bundle as stack_bundle

    checksum = stack_bundle.write(root, target.expanduser())
    print(f"{checksum}  {target}")
    print(f"On the other host, in a checkout of the same version: make up BUNDLE={target.name}")


@app.command("host-token")
def host_token(
    name: Annotated[str, typer.Argument(help="Name of the other machine in the stack.")],
    address: Annotated[str, typer.Option(help="Address at which the other machine reaches this host.")] = "",
    root: Root = Path(),
) -> None:
    """Write the file with which another machine joins this stack."""
    from mlplatform.errors import HostError
    from mlplatform_stack.hosts import verbs as hosts

    address = address or hosts.address_of_this_host()
    if not address:
        raise HostError("This host has no route to another one: name the address to use with ADDRESS=.")
    file = hosts.invite(root, name, address)
    print(f"wrote {file.name}, which has the secrets of a worker. Move it to a clone of this repository on {name}:\n")
    print(f"  scp {file} {name}:CLONE/ && rm {file}")
    print(f"  make join FROM={file.name}    # there")


@app.command()
def join(
    file: Annotated[Path | None, typer.Argument(help="File that `make host-token` wrote for this machine.")] = None,
    root: Root = Path(),
) -> None:
    """Add this machine's worker to the stack that wrote a file for it, and remove the file.

    On a machine that has joined, without a file: apply the settings in joined.env.
    """
    from mlplatform.errors import SettingsError
    from mlplatform_stack.host import this_host
    from mlplatform_stack.hosts import joining

    if file:
        name = joining.join(root, this_host(), file.expanduser())
        print(f"The worker ray-worker-{name} has joined. `make leave` removes it.")
    elif joining.has_joined(root):
        joining.start(root)
    else:
        raise SettingsError("FROM is missing: name the file that `make host-token` wrote on the stack's host.")


@app.command()
def leave(root: Root = Path()) -> None:
    """Stop this machine's worker and remove what `join` has written; its stack continues."""
    from mlplatform_stack.hosts import joining

    joining.leave(root)
    print("This machine has left. On the stack's host, `make remove-host` frees its name.")


@app.command("hosts")
def list_hosts(root: Root = Path(), as_json: Json = False) -> None:
    """List the hosts that have joined, with the addresses of their workers."""
    from mlplatform_stack.hosts import verbs as hosts

    found = hosts.joined(root)
    if as_json:
        return print_json({"name": name, "address": address} for name, address in found.items())
    for name, address in found.items():
        print(f"{name}\t{address}")


@app.command("remove-host")
def remove_host(name: Annotated[str, typer.Argument(help="Name of the host.")], root: Root = Path()) -> None:
    """Remove a host that has joined: its traffic is rejected from now on."""
    from mlplatform_stack.hosts import verbs as hosts

    hosts.remove(root, name)
    print(f"{name} is removed. It had the secrets of a worker: if you no longer trust it, run `make rotate`.")


def shell_env(root: Root = Path()) -> None:
    """Print the exports that connect a shell or a laptop to this checkout's stack, or else to the current platform."""
    from mlplatform.settings.job import settings
    from mlplatform_stack import entrance
    from mlplatform_stack import env as stack_env
    from mlplatform_stack.settings import StackSettings

    if not (root / ".env").is_file():
        print(exports(settings().environment()))
        return
    stack = StackSettings.load(root / ".env")
    client = stack_env.client_settings(root, entrance.origin(stack))
    trusted = entrance.trust(root, stack)
    # MLflow would name the shared account in its credentials file as the user of runs.
    print(connection({**client.environment(), "MLPLATFORM_USER": client.user, **trusted}))
    account, own = root / "secrets" / "mlflow_person", Path("~/.mlflow/credentials").expanduser()
    if account.is_file() and not (own.is_file() and own.read_text() == account.read_text()):
        # To stderr, because a shell that evaluates the exports would show no comment.
        print(f"MLflow reads its account from one place only: install -D -m 600 {account} {own}", file=sys.stderr)


def check(
    root: Root = Path(),
    only: Only = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects for programs.")] = False,
    fix: Annotated[bool, typer.Option(help="Apply the safe fixes: mode of secrets/, missing secrets.")] = False,
) -> None:
    """Check this host and its stack; report each problem, why it matters and what fixes it. Exits 1 if one blocks."""
    import json

    from mlplatform_stack.checks import examine, repair, running
    from mlplatform_stack.checks.finding import Place

    place = Place(root, only)
    _ = place.settings  # without a valid .env there is one problem, which has a sentence of its own
    found = examine(place)
    if fix and (fixed := repair(found)):
        for finding in fixed:
            print(f"Fixed: {finding.problem}", file=sys.stderr)
        found = examine(place)
    if as_json:
        print(json.dumps([finding.as_json() for finding in found], indent=2))
    else:
        for finding in found:
            print(finding)
        if not any(finding.blocks for finding in found):
            print("The stack can start on this host.")
        if not running.are_on(place.settings):
            print("Monitoring is off (COMPOSE_PROFILES in .env): of running services, only the containers are checked.")
    raise typer.Exit(int(any(finding.blocks for finding in found)))


def _cells(entry: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(entry.values())


def _sum(kind: str, parts: Sequence[Unneeded]) -> Unneeded:
    from mlplatform.api.storage import Unneeded

    count, files = sum(one.count for one in parts), sum(one.files for one in parts)
    return Unneeded(kind=kind, count=count, files=files, bytes=sum(one.bytes for one in parts))


def _shown(removed: Iterable[Unneeded], count: int) -> Iterator[Unneeded]:
    """Pass on what is removed, and show a progress bar in a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(removed, "Removing", total=count, console=console, transient=True, disable=not console.is_terminal)
