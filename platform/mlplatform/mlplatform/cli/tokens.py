"""`mlplatform tokens ...`: list and revoke tokens of people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from mlplatform.cli.output import Json, ask, print_list, read, span

if TYPE_CHECKING:
    from mlplatform.api.people import Token

app = typer.Typer(no_args_is_help=True, help="Tokens of people: list, revoke.")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show your own tokens; with the shared token, or as an administrator, those of everybody."""
    from mlplatform.api.people import Tokens

    tokens = read(Tokens, "GET", "/platform/tokens").tokens
    columns = ["Id", "Owner", "State", "Created", "Last used"]
    print_list(tokens, as_json, columns, _row, "There are no tokens of people.")


@app.command()
def revoke(token_id: Annotated[str, typer.Argument(help="Id of the token, as `tokens list` prints it.")]) -> None:
    """Revoke a token: it is refused from now on, also in open sessions and followed logs."""
    ask("DELETE", f"/platform/tokens/{quote(token_id)}", named=True)
    print(f"Revoked token {token_id}.")


def _row(token: Token) -> tuple[str, ...]:
    return token.id, token.owner, _state(token), span(token.created), span(token.used)


def _state(token: Token) -> str:
    if token.revoked:
        return "revoked"
    return "expired" if token.expires <= datetime.now(UTC) else f"valid until {span(token.expires)}"
