"""The command line, with what other distributions add; each command imports what it needs when it runs."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import typer

from mlplatform.cli import (
    audit,
    data,
    dev,
    jobs,
    local,
    mcp,
    models,
    notify,
    output,
    people,
    queue,
    secrets,
    ssh,
    submit,
    teams,
    tokens,
    top,
    usage,
)
from mlplatform.errors import PlatformError

_EXTRAS = {"mcp": "mcp", "websockets": "ssh"}
"""Packages that a laptop installs with an extra of ours."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Submit training jobs, follow them, and manage models and data sets.",
)
for verb in (
    *(submit.submit, submit.again, jobs.logs, jobs.wait, jobs.stop, jobs.resume, ssh.ssh, mcp.mcp, top.top),
    *(queue.queue, queue.why, audit.audit, usage.usage, notify.notify),
    *(tokens.login, tokens.logout, tokens.s3_credentials),
):
    app.command()(verb)
for noun in (jobs, dev, people, teams, tokens, secrets, models, data, local):
    app.add_typer(noun.app, name=noun.__name__.rpartition(".")[2])
for entry in sorted(entry_points(group="mlplatform.commands")):
    # Of other distributions: a group of commands, or a single one. mlplatform-stack adds the verbs of a host.
    added = entry.load()
    if isinstance(added, typer.Typer):
        app.add_typer(added, name=entry.name)
    else:
        app.command(entry.name)(added)


def main() -> None:
    """Run the command line: an error of ours becomes one sentence on stderr; a bug keeps its traceback."""
    output.protect_terminal()
    try:
        app()
    except PlatformError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except ModuleNotFoundError as missing:
        # A package of our extras: the virtual environment of `make up` has only what the stack itself needs.
        name = (missing.name or "").partition(".")[0]
        how = "run `make .venv/train` in the checkout, or use JupyterLab's terminal"
        if extra := _EXTRAS.get(name):
            how = f"run `pip install {name}`, or install mlplatform[{extra}]"
        print(f"This needs the Python package {name}, which is not installed here; {how}.", file=sys.stderr)
        raise SystemExit(1) from None
