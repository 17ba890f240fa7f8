"""`mlplatform usage`: the resources that people, teams and jobs have reserved."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mlplatform.cli.output import Json, print_list, seconds_in
from mlplatform.errors import SettingsError

if TYPE_CHECKING:
    from mlplatform.api.usage import Use
    from mlplatform.client.connection import Connection

_HOUR = 3600

_KINDS = ("GPU", "CPU", "Lost GPU", "Lost CPU", "Used GPU")

By = Literal["person", "team", "job"]
"""Groups of the sums."""


def usage(
    by: Annotated[By, typer.Option(help="Groups of the sums.")] = "person",
    since: Annotated[
        str, typer.Option(help="Begin: a time span such as 30d (s, m, h, d or w), or a date such as 2026-11-01.")
    ] = "30d",
    until: Annotated[str | None, typer.Option(help="End, in the same form.", show_default="now")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print seconds as comma-separated values.")] = False,
    as_json: Json = False,
) -> None:
    """Show the GPU and CPU time that people, teams or jobs have reserved, that of deleted jobs included.

    A job reserves what its entry point and its workers declare, from its start until its end. Attempts that overlap the
    beginning or the end of the time are counted in part, running ones until now. Lost: in attempts that the platform
    has lost, for which nobody pays. Used: time for which GPUs were measured to compute.
    """
    from mlplatform.client.connection import Connection

    if as_csv and as_json:
        raise SettingsError("Choose one of --csv and --json.")
    now = time.time()
    begin, end = moment(since, now), None if until is None else moment(until, now)
    if end is not None and begin >= end:
        raise SettingsError(f"--since {since} is not before --until {until}; choose an earlier begin.")
    with Connection() as link:
        found, budgets = read_usage(link, by, begin, end)
    if as_csv:
        return _print_csv(found, by)
    if not as_json:
        found.sort(key=lambda use: (-use.gpu_seconds, -use.cpu_seconds))
    names = [*_names(by), *_counts(by)]
    columns = [*(name.capitalize() for name in names), *(f"{kind} hours" for kind in _KINDS)]
    print_list(found, as_json, columns, partial(_row, by), "Nothing was reserved in this time.")
    for sentence in () if as_json else budgets:
        print(sentence)


def _print_csv(found: Sequence[Use], by: By) -> None:
    # The first line is there without groups, too: a program reads the same columns from an empty report.
    names = ["job", "sequence", "person", "team"] if by == "job" else [by]
    sums = ["gpu_seconds", "cpu_seconds", "lost_gpu_seconds", "lost_cpu_seconds"]
    columns = [*names, "jobs", "running", *sums, "borrowed_gpu_seconds", "used_gpu_seconds"]
    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(use.model_dump() for use in found)


def _names(by: By) -> Sequence[str]:
    return ("job", "person", "team") if by == "job" else (by,)


def _counts(by: By) -> Sequence[str]:
    return ("running",) if by == "job" else ("jobs", "running")


def _row(by: By, use: Use) -> tuple[str, ...]:
    sums = (use.gpu_seconds, use.cpu_seconds, use.lost_gpu_seconds, use.lost_cpu_seconds, use.used_gpu_seconds)
    return (
        *(getattr(use, name) or "-" for name in _names(by)),
        *(str(getattr(use, name)) for name in _counts(by)),
        *("-" if seconds is None else f"{seconds / _HOUR:.2f}" for seconds in sums),
    )


def read_usage(link: Connection, by: By, since: int, until: int | None) -> tuple[list[Use], list[str]]:
    """Return what each group has reserved between two Unix times, by name or arrival, and sentences on the budgets."""
    from mlplatform.api.usage import Report

    found: list[Use] = []
    window: dict[str, Any] = {"by": by, "since": since} | ({} if until is None else {"until": until})
    while True:
        answer = link.read(Report, "GET", "/platform/usage", params=window)
        found += answer.entries
        if answer.next is None:
            return found, answer.budgets
        window |= {"until": answer.until, "after": answer.next}


def moment(text: str, now: float) -> int:
    """Return the Unix time of a date or time in the zone of this machine, or of the begin of a span that ends now.

    Raises:
        SettingsError: it is none of these.
    """
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp()))
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return max(0, int(now) - seconds_in(text))
    except SettingsError:
        raise SettingsError(
            f"Invalid time {text!r}: use a time span such as 30d (s, m, h, d or w), or a date such as 2026-11-01."
        ) from None
