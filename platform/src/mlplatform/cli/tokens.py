"""`mlplatform tokens ...`: list and revoke tokens of people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from mlplatform.cli.output import Json

if TYPE_CHECKING:
    from mlplatform.api.people import Token

app = typer.Typer(no_args_is_help=True, help="Tokens of people: list, revoke.")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show your own tokens; with the shared token, or as an administrator, those of everybody."""
    from mlplatform.cli.output import print_json, print_table, span
    from mlplatform.client.connection import connected
    from mlplatform.client.people import tokens
    from mlplatform.settings.job import settings

    with connected(settings()) as link:
        found = tokens(link)
    if as_json:
        return print_json(found)
    if not found:
        print("There are no tokens of people.")
        return
    rows = [(token.id, token.owner, _state(token), span(token.created), span(token.used)) for token in found]
    print_table(["Id", "Owner", "State", "Created", "Last used"], rows)


@app.command()
def revoke(token_id: Annotated[str, typer.Argument(help="Id of the token, as `tokens list` prints it.")]) -> None:
    """Revoke a token: it is refused from now on, also in open sessions and followed logs."""
    from mlplatform.client.connection import connected
    from mlplatform.client.people import revoke as revoke_token
    from mlplatform.settings.job import settings

    with connected(settings()) as link:
        revoke_token(link, token_id)
    print(f"Revoked token {token_id}.")


def _state(token: Token) -> str:
    from mlplatform.cli.output import span

    if token.revoked:
        return "revoked"
    return "expired" if token.expires <= datetime.now(UTC) else f"valid until {span(token.expires)}"
