"""`mlplatform people ...`: add, list and remove people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from mlplatform.cli.output import Json, print_json, print_list, read, span

if TYPE_CHECKING:
    from mlplatform.api.people import Person

app = typer.Typer(no_args_is_help=True, help="People with tokens of their own: add, list, remove.")

Name = Annotated[str, typer.Argument(help="Name: 2 to 30 lower-case letters, digits and '-'.")]


@app.command()
def add(
    name: Name,
    team: Annotated[str | None, typer.Option(help="Team to join; `mlplatform teams add` adds one.")] = None,
    lead: Annotated[bool, typer.Option(help="Lead of the team, who may stop and delete its jobs.")] = False,
    admin: Annotated[bool, typer.Option(help="Administrator, who may do everything.")] = False,
    gpu_hours: Annotated[float | None, typer.Option(min=0, help="GPU hours until the token submits no more.")] = None,
    as_json: Json = False,
) -> None:
    """Add a person, and print a code for `mlplatform login`.

    If the person exists, add the team or rights that are given. The code is valid once, for 24 hours; earlier codes of
    the person are void.
    """
    from mlplatform.api.people import Invited

    person = {"name": name, "team": team, "lead": lead, "administrator": admin, "gpu_hours": gpu_hours}
    invited = read(Invited, "POST", "/platform/people", named=True, json=person)
    if as_json:
        return print_json([invited])
    print(f"{'Added' if invited.added else 'Changed'} {name}. The code is valid once, until", end=" ")
    print(f"{span(invited.expires)}:\n\n    mlplatform login {invited.code}\n")
    print("Then `mlplatform dev start` gives them a JupyterLab of their own.")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show all people with their teams."""
    from mlplatform.api.people import People

    people = read(People, "GET", "/platform/people").people
    empty = "Nobody has been added: everybody uses the shared token."
    print_list(people, as_json, ["Name", "Teams", "Rights", "Added"], _row, empty)


@app.command()
def remove(
    name: Name,
    team: Annotated[str | None, typer.Option(help="Remove the person only from this team.")] = None,
    as_json: Json = False,
) -> None:
    """Remove a person and revoke all tokens at once; running jobs continue, and all jobs stay."""
    from mlplatform.api.people import RemovedPerson

    params = {"team": team} if team else None
    removed = read(RemovedPerson, "DELETE", f"/platform/people/{quote(name)}", named=True, params=params)
    if as_json:
        print_json([removed])
    elif team:
        print(f"Removed {name} from team {team}.")
    else:
        print(f"Removed {name}. The jobs stay, and would belong to anybody who is added under this name again.")
        if removed.s3_key_in_file:
            print("Replace the key of people at the S3 server, write the new one into secrets/s3_people, and run")
            print("`make down up`: until then, the former one is valid.")
        else:
            print(
                "The S3 key of people is replaced: within a minute the former one is refused, and S3 clients of others"
            )
            print("that are running fail until they are restarted.")
        print("The accounts of all jobs, which this person's jobs could read, end with `make rotate`.")


def _row(person: Person) -> tuple[str, ...]:
    teams = ", ".join(f"{team} (lead)" if role == "lead" else team for team, role in person.teams.items())
    return person.name, teams, "administrator" if person.administrator else "", span(person.created)
