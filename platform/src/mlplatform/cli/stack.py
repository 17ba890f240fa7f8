"""`mlplatform stack ...`: what the Makefile's verbs run on the host of a stack."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Set up and look at the stack of containers on this host (the Makefile's verbs).", no_args_is_help=True
)

Root = Annotated[Path, typer.Option(help="Folder of the checkout.", show_default="here")]

Only = Annotated[str, typer.Option(help="Half of the stack to start: tracking or ray; empty for all of it.")]


@app.command()
def env(root: Root = Path()) -> None:
    """Write .env and the secrets that are missing; nothing is overwritten."""
    from mlplatform.stack import env as stack_env

    written = stack_env.write_env(root.absolute())
    for line in written or ["nothing: .env and secrets/ are complete"]:
        print(f"wrote {line}")


@app.command()
def up(root: Root = Path(), only: Only = "") -> None:
    """Check the host, start the stack, wait until it is healthy and show its addresses."""
    from mlplatform.stack import compose, doctor

    doctor.check_host(root.absolute(), only)
    compose.up(root.absolute(), only)
    status(root)


@app.command()
def data(
    source: Annotated[str, typer.Argument(help="Address or path of the archive of Food-11, zip or tar.")] = "",
    force: Annotated[bool, typer.Option(help="Replace what the volume holds.")] = False,
    root: Root = Path(),
) -> None:
    """Fill the volume food11 with photos for the lessons; a volume that is filled is left as it is."""
    from mlplatform.stack import compose

    raise typer.Exit(compose.fill_food11(root.absolute(), source, force))


@app.command()
def status(root: Root = Path()) -> None:
    """Show the addresses of what runs, how to log in, and how to reach it from a laptop."""
    from rich.console import Console
    from rich.table import Table

    from mlplatform.settings.stack import StackSettings
    from mlplatform.stack import compose, pages

    settings = StackSettings.load(root.absolute() / ".env")
    running = compose.running(root.absolute())
    shown = [page for page in pages.pages(settings) if page.service in running]
    if not shown:
        print("Nothing runs; `make up` starts the stack.")
        return
    table = Table("Page", "Address", "Log in with", box=None, pad_edge=False)
    for page in shown:
        table.add_row(page.title, f"http://{settings.bind_address}:{page.port}", page.login)
    console = Console()
    console.print(table)
    console.print("\nFrom a laptop, this brings every page to the same addresses there:")
    # On one line whatever the terminal's width, so that it can be copied.
    host = f"{getpass.getuser()}@{socket.gethostname()}"
    console.print(f"  {pages.ssh_line(shown, host)}", soft_wrap=True)
