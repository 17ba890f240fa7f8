"""`mlplatform local ...`: the embedded platform on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mlplatform.cli.output import Json, connection, print_result

app = typer.Typer(
    no_args_is_help=True,
    help="The embedded platform: Ray, MLflow and the gateway as processes on this machine, without Docker.",
)

_DOWN = "The embedded platform is not running; start it with `mlplatform local up`."


@app.command()
def up() -> None:
    """Start the embedded platform and leave it running."""
    from mlplatform.local.platform import LocalPlatform

    print(LocalPlatform().up().addresses())
    print('Use it in this shell: eval "$(mlplatform local env)"')


@app.command()
def down() -> None:
    """Stop the embedded platform; runs, models and checkpoints stay."""
    from mlplatform.local.platform import LocalPlatform

    print("Stopped." if LocalPlatform().down() else "It was not running.")


@app.command()
def status(as_json: Json = False) -> None:
    """Report whether the embedded platform is up; exit 1 if it is not."""
    from mlplatform.local.platform import LocalPlatform

    settings = LocalPlatform().status()
    if settings is None:
        print(_DOWN, file=sys.stderr if as_json else sys.stdout)
        raise typer.Exit(1)
    print_result({"mlflow": settings.tracking_uri, "ray": settings.ray_address}, as_json, settings.addresses())


@app.command()
def env() -> None:
    """Print the exports that connect a shell to the embedded platform."""
    from mlplatform.errors import UnreachableError
    from mlplatform.local.platform import LocalPlatform

    settings = LocalPlatform().status()
    if settings is None:
        raise UnreachableError(_DOWN)
    print(connection(settings.environment()))


@app.command()
def demo(
    script: Annotated[Path, typer.Argument(help="The job to run.")] = Path("jobs/digits.py"),
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script (after --).")] = None,
) -> None:
    """Start the platform, train a model on it, show the results, and stop it again."""
    from mlplatform.local.demo import run

    run(script, arguments or [])
