"""`mlplatform top`: the use of nodes, GPUs and running jobs, live in a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from typing import Annotated

import typer

from mlplatform.errors import UnreachableError

_REFRESH_SECONDS = 2.0

# xterm's control sequences: a screen of its own without a cursor, and the return to the previous screen.
_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_TO_TOP, _END_LINE, _END_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def top(
    once: Annotated[bool, typer.Option("--once", help="Print the figures and exit, as without a terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one line of JSON and exit.")] = False,
) -> None:
    """Show live how much of each node and GPU is in use, and by which jobs; Ctrl-C ends it."""
    from mlplatform.api.cluster import Utilisation
    from mlplatform.cli.output import print_json, terminal
    from mlplatform.client.connection import Connection
    from mlplatform.client.utilisation import describe

    link = Connection()

    def read() -> Utilisation:
        return link.read(Utilisation, "GET", "/platform/utilisation")

    use = read()
    if as_json:
        return print_json([use])
    shown = describe(use)
    if once or not sys.stdout.isatty():
        print(shown)
        return
    try:
        print(_OPEN, end="", file=terminal())
        while True:
            _draw(shown)
            time.sleep(_REFRESH_SECONDS)
            try:
                shown = describe(read())
            except UnreachableError as error:
                shown = textwrap.fill(str(error), shutil.get_terminal_size().columns)
    except KeyboardInterrupt:
        pass
    finally:
        print(_CLOSE, end="", flush=True, file=terminal())


def _draw(text: str) -> None:
    """Replace the screen's contents; what does not fit is cut."""
    from mlplatform.cli.output import terminal
    from mlplatform.text.terminal import printable

    width, height = shutil.get_terminal_size()
    lines = [f"{time.strftime('%H:%M:%S')}, every {_REFRESH_SECONDS:g} s", "", *printable(text).splitlines()]
    if len(lines) > height:
        lines[height - 1 :] = ["... more lines than this terminal has; `mlplatform top --once` prints all of them"]
    drawn = f"{_END_LINE}\n".join(line[:width] for line in lines)
    print(_TO_TOP, drawn, _END_LINE, _END_SCREEN, sep="", end="", flush=True, file=terminal())
