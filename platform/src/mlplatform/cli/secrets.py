"""`mlplatform secrets ...`: values that only one's own jobs get, as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlplatform.cli.output import Json

if TYPE_CHECKING:
    from mlplatform.api.people import Secret

app = typer.Typer(no_args_is_help=True, help="Your own secrets, which your jobs find as files: put, list, remove.")


@app.command()
def put(
    name: Annotated[str, typer.Argument(help="Name of the secret, and of the file in which jobs find it.")],
    source: Annotated[str | None, typer.Argument(metavar="[-]", help="`-` reads the standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="File whose content becomes the value.")] = None,
) -> None:
    """Store a secret, or replace its value. The value is prompted for, unless `-` or --file names where to read it.

    Your jobs that start from now on find it in the file $MLPLATFORM_SECRETS/NAME. A file is stored as it is; the line
    break that ends the standard input is left out.
    """
    from mlplatform.client import secrets
    from mlplatform.client.connection import connected
    from mlplatform.errors import SettingsError
    from mlplatform.settings.job import settings

    if source not in (None, "-") or (source and file):
        raise SettingsError("Choose one of `-` and --file; a value on the command line would be visible to others.")
    if file:
        value = secrets.content(file)
    elif source:
        value = sys.stdin.buffer.read().removesuffix(b"\n").removesuffix(b"\r")
    else:
        value = typer.prompt(f"Value of {name}", hide_input=True).encode()
    with connected(settings()) as link:
        secrets.put(link, name, value)
    print(f"Stored {name}; your jobs that start from now on find it in $MLPLATFORM_SECRETS/{name}.")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show names and sizes of your secrets, and when they were set; nobody can read their values."""
    from mlplatform.cli.output import human, print_json, print_table, span
    from mlplatform.client import secrets
    from mlplatform.client.connection import connected
    from mlplatform.settings.job import settings

    with connected(settings()) as link:
        found = secrets.secrets(link)
    if as_json:
        return print_json(found)
    if not found:
        print("You have no secrets; `mlplatform secrets put NAME` stores one.")
        return
    rows = [(secret.name, human(secret.bytes), span(secret.changed), _state(secret)) for secret in found]
    print_table(["Name", "Size", "Set", "State"], rows)


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Name of the secret.")]) -> None:
    """Remove a secret; jobs that are running keep their files."""
    from mlplatform.client import secrets
    from mlplatform.client.connection import connected
    from mlplatform.settings.job import settings

    with connected(settings()) as link:
        secrets.remove(link, name)
    print(f"Removed {name}.")


def _state(secret: Secret) -> str:
    return "stored" if secret.readable else "lost with its key, so jobs do not get it: put it again"
