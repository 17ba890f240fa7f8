"""Output that several commands share."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar

import typer

from mlplatform.errors import PlatformError

if TYPE_CHECKING:
    from datetime import datetime

    import httpx
    from pydantic import BaseModel

    from mlplatform.client.jobs import Jobs

    Model = TypeVar("Model", bound=BaseModel)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one line per entry.")]

_Entry = TypeVar("_Entry", bound="BaseModel | Mapping[str, Any]")

_EXPLAIN_SECONDS = 2.0

_ENDLESS = 1 << 20
"""Columns of a table that a program reads."""


def protect_terminal() -> None:
    """Make everything that this process prints printable: values of jobs and models may control the terminal.

    `--help` alone is left as it is: it prints our own texts, in colors.
    """
    words = sys.argv[1:]
    if "--help" in words[: words.index("--") if "--" in words else None]:
        return
    from mlplatform.text.terminal import PrintableStream

    sys.stdout, sys.stderr = PrintableStream(sys.stdout), PrintableStream(sys.stderr)


def terminal() -> TextIO:
    """Return the standard output for text that controls the terminal; its values must be printable already."""
    raw: TextIO = getattr(sys.stdout, "raw", sys.stdout)
    return raw


def ask(method: str, path: str, **options: Any) -> httpx.Response:
    """Send one request to the gateway, as `Connection.call` does, with the settings of this process."""
    from mlplatform.client.connection import Connection

    with Connection() as link:
        return link.call(method, path, **options)


def read(model: type[Model], method: str, path: str, **options: Any) -> Model:
    """Return the gateway's answer to one request, as `Connection.read` does, with the settings of this process."""
    from mlplatform.client.connection import Connection

    with Connection() as link:
        return link.read(model, method, path, **options)


@contextmanager
def explained(client: Jobs, job_id: str) -> Iterator[None]:
    """Print to stderr why a job waits, after two seconds and when that changes, meanwhile."""
    left = threading.Event()

    def explain() -> None:
        said = ""
        with suppress(PlatformError):  # who follows the job's log is shown it
            while not left.wait(_EXPLAIN_SECONDS) and (job := client.get(job_id)).status == "PENDING":
                if job.message != said:
                    print(job.message, file=sys.stderr, flush=True)
                said = job.message

    threading.Thread(target=explain, daemon=True).start()
    try:
        yield
    finally:
        left.set()


def print_log(texts: Iterable[str]) -> None:
    """Print a job's log as `Jobs.follow_text` yields it: on a terminal, an unfinished line is redrawn in one row."""
    from mlplatform.client.follow import last_state
    from mlplatform.text.terminal import printable

    out, rest = terminal(), ""
    for text in texts:
        if out.isatty():
            *whole, rest = (rest + text).split("\n")
            cut = printable(last_state(rest))[: shutil.get_terminal_size().columns - 1]
            text = "".join(f"\r\x1b[K{printable(last_state(line))}\n" for line in whole) + f"\r\x1b[K{cut}"
        else:
            text = "\r".join(map(printable, text.split("\r")))
        out.write(text)
        out.flush()


def print_list(
    entries: Sequence[_Entry],
    as_json: bool,
    columns: Sequence[str],
    row: Callable[[_Entry], tuple[str, ...]],
    empty: str = "",
) -> None:
    """Print entries: as a table for people, or each as one line of JSON for programs.

    Args:
        entries: what is listed.
        as_json: print JSON.
        columns: titles of the table.
        row: returns the cells of an entry.
        empty: sentence that is printed instead of a table without rows.
    """
    if as_json:
        print_json(entries)
    elif empty and not entries:
        print(empty)
    else:
        print_table(columns, [row(entry) for entry in entries])


def print_result(result: BaseModel | Mapping[str, Any], as_json: bool, text: str) -> None:
    """Print one result: a text for people, or one line of JSON for programs."""
    if as_json:
        print_json([result])
    else:
        print(text)


def print_json(entries: Iterable[BaseModel | Mapping[str, Any]]) -> None:
    """Print each entry as one line of JSON, in ASCII, so that no value controls the terminal."""
    for entry in entries:
        print(json.dumps(fields(entry)))


def fields(entry: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    """Return what programs get of an entry."""
    return dict(entry) if isinstance(entry, Mapping) else entry.model_dump(mode="json", exclude_unset=True)


def print_table(columns: Sequence[str], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table whose first column is never cut: it contains the id that other commands accept.

    Cells are printed as they are, brackets and colons included; in a pipe, none is cut or wrapped.
    """
    from rich.console import Console
    from rich.table import Column, Table

    from mlplatform.text.terminal import printable

    table = Table(Column(columns[0], no_wrap=True), *columns[1:], box=None)
    # Rich takes a pipe for a terminal of 80 columns, and any output for one while FORCE_COLOR is set.
    is_read = not terminal().isatty()
    for row in rows:
        table.add_row(*(printable(cell).replace("\n", " ") if is_read else printable(cell) for cell in row))
    width = _ENDLESS if is_read else None
    Console(file=terminal(), width=width, markup=False, emoji=False).print(table)


def seconds_in(duration: str, option: str = "--since") -> int:
    """Return the seconds of a time span such as `7d`.

    Args:
        duration: a number and a unit.
        option: the option that has this value, for the error.

    Raises:
        SettingsError: it is not a number and a unit.
    """
    from mlplatform.errors import SettingsError
    from mlplatform.text import durations

    try:
        return durations.seconds_in(duration)
    except ValueError as error:
        raise SettingsError(f"Invalid {option} {duration!r}: {error}.") from error


def span(*moments: datetime | None) -> str:
    """Return the known moments in this machine's time zone, as in `2026-11-22 10:00:00 to 2026-11-22 10:05:00`."""
    return " to ".join(f"{moment.astimezone():%Y-%m-%d %H:%M:%S}" for moment in moments if moment)


def exports(variables: Mapping[str, str]) -> str:
    """Return shell lines that export variables."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items()))


def connection(variables: Mapping[str, str]) -> str:
    """Return shell lines that export variables, and unset those that lead elsewhere, which are named on stderr."""
    from mlplatform.settings.environment import in_the_way

    if not (others := " ".join(in_the_way(variables))):
        return exports(variables)
    print(f"Unset in this shell, because clients of the platform would use them: {others}", file=sys.stderr)
    return f"unset {others}\n{exports(variables)}"
