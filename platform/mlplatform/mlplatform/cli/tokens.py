"""`mlplatform login`, `logout`, `s3-credentials` with a person's own token; `tokens ...` lists and revokes tokens."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from mlplatform.cli.output import Json, ask, print_list, read, span

if TYPE_CHECKING:
    from mlplatform.api.people import Token

app = typer.Typer(no_args_is_help=True, help="Tokens of people: list, revoke.")


def login(
    code: Annotated[str | None, typer.Argument(help="Log-in code; prompted for without.")] = None,
    force: Annotated[bool, typer.Option(help="Replace a token of somebody else in the file.")] = False,
) -> None:
    """Log in with the one-time code that `mlplatform people add` has printed, and store the token.

    Ray's clients read it from the file in RAY_AUTH_TOKEN_PATH, by default ~/.ray/auth_token. MLflow's clients find the
    person's account in ~/.mlflow/credentials, which is left alone if it has another one. S3 clients ask the gateway for
    a key, as ~/.aws/config says: in the default profile, or in the profile mlplatform if there is another default.
    """
    from mlplatform.client.people import log_in
    from mlplatform.settings.job import settings

    done = log_in(settings(), code or typer.prompt("Log-in code", hide_input=True), force)
    print(f"Logged in as {done.person} until {span(done.expires)}; the token is in {done.file}.")
    if done.mlflow_file:
        print(f"MLflow's clients, and you for its page, find your account in {done.mlflow_file}.")
    elif done.has_mlflow:
        print("MLflow's clients have no account of yours: ~/.mlflow/credentials has another, or cannot be written.")
    if done.s3_profile == "default":
        print("S3 clients get a key from the gateway with it, as ~/.aws/config says.")
    elif done.s3_profile:
        print(f"S3 clients get a key from the gateway with it after: export AWS_PROFILE={done.s3_profile}")
    if done.s3_endpoint:
        named = "AWS_ENDPOINT_URL" if settings().s3_endpoint else "the gateway"
        print(
            f"They connect to {done.s3_endpoint}, as {named} says; endpoint_url in ~/.aws/config can name another port."
        )
    elif done.s3_problem:
        print(done.s3_problem)
    print(f"Ray's own clients send it with: export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={done.file}")


def s3_credentials() -> None:
    """Print an S3 key as JSON, for `credential_process` in ~/.aws/config; `mlplatform login` writes it there."""
    import json

    from mlplatform.client import people
    from mlplatform.settings.job import settings

    print(json.dumps(people.s3_credentials(settings())))


def logout() -> None:
    """Revoke the token of `mlplatform login` and remove it from the files of Ray, MLflow and S3 clients."""
    from mlplatform.client.people import log_out
    from mlplatform.settings.job import settings

    print(f"Logged out; {log_out(settings())} is removed.")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show your own tokens; with the shared token, or as an administrator, those of everybody."""
    from mlplatform.api.people import Tokens

    tokens = read(Tokens, "GET", "/platform/tokens").tokens
    columns = ["Id", "Owner", "State", "Created", "Last used", "GPU hours"]
    print_list(tokens, as_json, columns, _row, "There are no tokens of people.")


@app.command()
def revoke(token_id: Annotated[str, typer.Argument(help="Id of the token, as `tokens list` prints it.")]) -> None:
    """Revoke a token: it is refused from now on, also in open sessions and followed logs."""
    ask("DELETE", f"/platform/tokens/{quote(token_id)}", named=True)
    print(f"Revoked token {token_id}.")


def _row(token: Token) -> tuple[str, ...]:
    hours = "" if token.gpu_hours is None else f"{token.gpu_hours:g}"
    return token.id, token.owner, _state(token), span(token.created), span(token.used), hours


def _state(token: Token) -> str:
    if token.revoked:
        return "revoked"
    return "expired" if token.expires <= datetime.now(UTC) else f"valid until {span(token.expires)}"
