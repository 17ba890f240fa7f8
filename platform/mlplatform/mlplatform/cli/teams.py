"""`mlplatform teams ...`: add, change, list and remove teams."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from mlplatform.cli.output import Json, ask, print_list, print_result, read, seconds_in

if TYPE_CHECKING:
    from mlplatform.api.people import Team

app = typer.Typer(no_args_is_help=True, help="Teams, which share jobs and resources: add, set, list, remove.")

_PATH = "/platform/teams"

Name = Annotated[str, typer.Argument(help="Name: 2 to 30 lower-case letters, digits and '-'.")]
Gpus = Annotated[float | None, typer.Option(min=0, help="GPUs that are the team's before anybody else's (default 0).")]
Cpus = Annotated[float | None, typer.Option(min=0, help="CPUs likewise (default 0: those that go with its GPUs).")]
Weight = Annotated[
    float | None, typer.Option(min=0, help="Part of what is left over, relative to other teams (default 1).")
]
Limit = Annotated[str | None, typer.Option(help="Time limit of jobs that set none (default 24h).")]
Idle = Annotated[
    str | None,
    typer.Option(help="Time after which others may have the GPUs of a job that does nothing with them, or never."),
]
Cap = Annotated[
    list[str] | None,
    typer.Option(help="Upper limit of the team: gpus=4, cpus=, running= or waiting=; repeatable."),
]
PersonCap = Annotated[list[str] | None, typer.Option(help="The same for each person of the team; repeatable.")]

Shells = Annotated[
    bool | None, typer.Option("--shells/--no-shells", help="Shells and JupyterLab in its jobs (default: allowed).")
]
GpuHours = Annotated[str | None, typer.Option(help="Budget, as in 500/month, /week or /day, or none.")]


@app.command()
def add(
    name: Name,
    gpus: Gpus = None,
    cpus: Cpus = None,
    weight: Weight = None,
    default_limit: Limit = None,
    idle_after: Idle = None,
    cap: Cap = None,
    person_cap: PersonCap = None,
    shells: Shells = None,
    gpu_hours: GpuHours = None,
    as_json: Json = False,
) -> None:
    """Add a team, and print what is guaranteed between people on one Ray cluster, and what is not."""
    from mlplatform.api.people import Team
    from mlplatform.client.people import GUARANTEES

    values = _values(gpus, cpus, weight, default_limit, idle_after, cap, person_cap, shells, gpu_hours)
    team = read(Team, "POST", _PATH, json={"name": name, **values})
    sentence = f"Added team {name}. Add its people with `mlplatform people add NAME --team {name}`."
    print_result(team, as_json, f"{sentence}\n\n{GUARANTEES.rstrip()}")
    _warn_of_shares()


@app.command("set")
def set_(
    name: Name,
    gpus: Gpus = None,
    cpus: Cpus = None,
    weight: Weight = None,
    default_limit: Limit = None,
    idle_after: Idle = None,
    cap: Cap = None,
    person_cap: PersonCap = None,
    shells: Shells = None,
    gpu_hours: GpuHours = None,
    as_json: Json = False,
) -> None:
    """Change the values that are given; --cap and --person-cap together replace all upper limits of the team."""
    from mlplatform.api.people import Team

    values = _values(gpus, cpus, weight, default_limit, idle_after, cap, person_cap, shells, gpu_hours)
    team = read(Team, "PATCH", f"{_PATH}/{quote(name)}", named=True, json=values)
    print_result(team, as_json, f"Changed team {name}.")
    _warn_of_shares()


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show all teams with their shares and limits."""
    from mlplatform.api.people import Teams

    columns = ["Team", "GPUs", "CPUs", "Weight", "Time limit", "Idle after", "GPU hours used", "Upper limits"]
    empty = "There are no teams; `mlplatform teams add NAME` adds one."
    print_list(read(Teams, "GET", _PATH).teams, as_json, columns, _row, empty)


@app.command()
def remove(
    name: Name,
    force: Annotated[
        bool, typer.Option(help="Also if it has open jobs, which continue, or people who are in no other team.")
    ] = False,
) -> None:
    """Remove a team with its share and limits; its people and its jobs stay."""
    ask("DELETE", f"{_PATH}/{quote(name)}", named=True, params={"force": "1"} if force else None)
    print(f"Removed team {name}. Its jobs stay, and would belong to a team that is added under this name again.")


def _warn_of_shares() -> None:
    from mlplatform.client.connection import Connection
    from mlplatform.client.people import beyond_nodes

    with Connection() as link:
        if warning := beyond_nodes(link):
            print(warning, file=sys.stderr)


def _values(
    gpus: float | None,
    cpus: float | None,
    weight: float | None,
    default_limit: str | None,
    idle_after: str | None,
    cap: list[str] | None,
    person_cap: list[str] | None,
    shells: bool | None,
    gpu_hours: str | None,
) -> dict[str, Any]:
    """Return the fields of the gateway that are given."""
    from mlplatform.client.people import caps_in

    given: dict[str, Any] = {
        "share_gpus": gpus,
        "share_cpus": cpus,
        "weight": weight,
        "default_limit_s": None if default_limit is None else seconds_in(default_limit, "--default-limit"),
        "idle_s": None if idle_after is None else _idle_s(idle_after),
        "shells": shells,
        "budget": "" if gpu_hours == "none" else gpu_hours,
    }
    if cap or person_cap:
        caps = {"team": caps_in("--cap", cap or []), "person": caps_in("--person-cap", person_cap or [])}
        given["caps"] = {whose: limits for whose, limits in caps.items() if limits}
    return {name: value for name, value in given.items() if value is not None}


def _idle_s(text: str) -> int:
    return 0 if text == "never" else seconds_in(text, "--idle-after")


def _row(team: Team) -> tuple[str, ...]:
    from mlplatform.text.durations import in_words

    shares = (f"{team.share_gpus:g}", f"{team.share_cpus:g}", f"{team.weight:g}")
    idle = in_words(team.idle_s) if team.idle_s else "never"
    limits = "; ".join(filter(None, (_shown(team.caps), "" if team.shells else "no shells")))
    used = "" if team.used_gpu_hours is None else f"{team.used_gpu_hours:.1f} of {team.budget}"
    return (team.name, *shares, f"{team.default_limit_s / 3600:g} h", idle, used, limits)


def _shown(caps: dict[str, dict[str, float]]) -> str:
    return "; ".join(
        f"{whose}: " + ", ".join(f"{name} {value:g}" for name, value in limits.items())
        for whose, limits in caps.items()
        if limits
    )
