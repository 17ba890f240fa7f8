"""`mlplatform tokens ...`: list and revoke tokens of people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from mlplatform.cli.output import ask, print_table, span

app = typer.Typer(no_args_is_help=True, help="Tokens of people: list, revoke.")


@app.command("list")
def list_() -> None:
    """Show your own tokens; with the shared token, or as an administrator, those of everybody."""
    rows = [
        (token["id"], token["owner"], _state(token), span(token["created"]), span(token["used"]))
        for token in ask("GET", "/platform/tokens").json()["tokens"]
    ]
    print_table(["Id", "Owner", "State", "Created", "Last used"], rows, "There are no tokens of people.")


@app.command()
def revoke(token_id: Annotated[str, typer.Argument(help="Id of the token, as `tokens list` prints it.")]) -> None:
    """Revoke a token: it is refused from now on, also in open sessions and followed logs."""
    ask("DELETE", f"/platform/tokens/{quote(token_id)}", named=True)
    print(f"Revoked token {token_id}.")


def _state(token: Mapping[str, Any]) -> str:
    expires = datetime.fromisoformat(token["expires"])
    if token["revoked"]:
        return "revoked"
    return "expired" if expires <= datetime.now(UTC) else f"valid until {span(expires)}"
