"""`mlplatform secrets ...`: values that only one's own jobs get, as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from mlplatform.cli.output import Json, ask, print_list, read, span

if TYPE_CHECKING:
    from mlplatform.api.people import Secret

app = typer.Typer(no_args_is_help=True, help="Your own secrets, which your jobs find as files: put, list, remove.")

_PATH = "/platform/secrets"


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
    from mlplatform.errors import SettingsError

    if source not in (None, "-") or (source and file):
        raise SettingsError("Choose one of `-` and --file; a value on the command line would be visible to others.")
    if file:
        try:
            value = file.read_bytes()
        except OSError as error:
            raise SettingsError(f"{file} cannot be read ({error.strerror}); name a file with the secret.") from error
    elif source:
        value = sys.stdin.buffer.read().removesuffix(b"\n").removesuffix(b"\r")
    else:
        value = typer.prompt(f"Value of {name}", hide_input=True).encode()
    ask("PUT", f"{_PATH}/{quote(name, safe='')}", named=True, content=value)
    print(f"Stored {name}; your jobs that start from now on find it in $MLPLATFORM_SECRETS/{name}.")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show names and sizes of your secrets, and when they were set; nobody can read their values."""
    from mlplatform.api.people import Secrets

    empty = "You have no secrets; `mlplatform secrets put NAME` stores one."
    print_list(read(Secrets, "GET", _PATH).secrets, as_json, ["Name", "Size", "Set", "State"], _row, empty)


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Name of the secret.")]) -> None:
    """Remove a secret; jobs that are running keep their files."""
    ask("DELETE", f"{_PATH}/{quote(name, safe='')}", named=True)
    print(f"Removed {name}.")


def _row(secret: Secret) -> tuple[str, ...]:
    from rich.filesize import decimal

    state = "stored" if secret.readable else "lost with its key, so jobs do not get it: put it again"
    return secret.name, decimal(secret.bytes), span(secret.changed), state
