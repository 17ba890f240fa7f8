"""`mlplatform tokens ...`: list and revoke tokens of people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

app = typer.Typer(no_args_is_help=True, help="Tokens of people: list, revoke.")


@app.command("list")
def list_() -> None:
    """Show your own tokens; with the shared token, or as an administrator, those of everybody."""
    from mlplatform.cli.output import print_table, span
    from mlplatform.client.connection import Connection

    with Connection() as link:
        found = link.call("GET", "/platform/tokens").json()["tokens"]
    if not found:
        print("There are no tokens of people.")
        return
    rows = [
        (
            token["id"],
            token["owner"],
            _state(token),
            *(span(datetime.fromisoformat(token[name]) if token[name] else None) for name in ("created", "used")),
        )
        for token in found
    ]
    print_table(["Id", "Owner", "State", "Created", "Last used"], rows)


@app.command()
def revoke(token_id: Annotated[str, typer.Argument(help="Id of the token, as `tokens list` prints it.")]) -> None:
    """Revoke a token: it is refused from now on, also in open sessions and followed logs."""
    from mlplatform.client.connection import Connection

    with Connection() as link:
        link.call("DELETE", f"/platform/tokens/{quote(token_id)}", named=True)
    print(f"Revoked token {token_id}.")


def _state(token: Mapping[str, Any]) -> str:
    from mlplatform.cli.output import span

    expires = datetime.fromisoformat(token["expires"])
    if token["revoked"]:
        return "revoked"
    return "expired" if expires <= datetime.now(UTC) else f"valid until {span(expires)}"
