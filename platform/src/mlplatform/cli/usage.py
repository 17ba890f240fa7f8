"""`mlplatform usage`: the resources that people, teams and jobs have reserved."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from mlplatform.cli.output import Json, print_json, print_table

if TYPE_CHECKING:
    from mlplatform.api.usage import Use

_HOUR = 3600


class _By(StrEnum):
    PERSON = "person"
    TEAM = "team"
    JOB = "job"


def usage(
    by: Annotated[_By, typer.Option(help="Groups of the sums.")] = _By.PERSON,
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
    from mlplatform.client.connection import connected
    from mlplatform.client.usage import moment, read
    from mlplatform.errors import SettingsError
    from mlplatform.settings.job import settings

    if as_csv and as_json:
        raise SettingsError("Choose one of --csv and --json.")
    now = time.time()
    begin, end = moment(since, now), None if until is None else moment(until, now)
    if end is not None and begin >= end:
        raise SettingsError(f"--since {since} is not before --until {until}; choose an earlier begin.")
    with connected(settings()) as link:
        found = list(read(link, by, begin, end))
    if as_json:
        print_json(found)
    elif as_csv:
        _print_csv(found, by)
    else:
        _print_table(found, by)


def _print_csv(found: Sequence[Use], by: _By) -> None:
    # The first line is there without groups, too: a program reads the same columns from an empty report.
    names = ["job", "sequence", "person", "team"] if by is _By.JOB else [str(by)]
    sums = ["gpu_seconds", "cpu_seconds", "lost_gpu_seconds", "lost_cpu_seconds"]
    columns = [*names, "jobs", "running", *sums, "borrowed_gpu_seconds", "used_gpu_seconds"]
    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(use.model_dump() for use in found)


def _print_table(found: Sequence[Use], by: _By) -> None:
    if not found:
        print("Nothing was reserved in this time.")
        return
    largest = sorted(found, key=lambda use: (-use.gpu_seconds, -use.cpu_seconds))
    names = [str(by), *(["person", "team"] if by is _By.JOB else [])]
    counts = ["running"] if by is _By.JOB else ["jobs", "running"]
    sums = ["gpu_seconds", "cpu_seconds", "lost_gpu_seconds", "lost_cpu_seconds"]
    print_table(
        [
            *(name.capitalize() for name in (*names, *counts)),
            *("GPU hours", "CPU hours", "Lost GPU hours", "Lost CPU hours", "Used GPU hours"),
        ],
        [
            (
                *(getattr(use, name) or "-" for name in names),
                *(str(getattr(use, name)) for name in counts),
                *(f"{getattr(use, name) / _HOUR:.2f}" for name in sums),
                "-" if use.used_gpu_seconds is None else f"{use.used_gpu_seconds / _HOUR:.2f}",
            )
            for use in largest
        ],
    )
