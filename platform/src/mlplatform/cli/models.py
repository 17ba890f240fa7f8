"""`mlplatform models ...`: the model registry and its webhooks."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mlplatform.cli.output import Json, print_json, print_table

app = typer.Typer(help="Models by name: list, promote, download; webhooks for promotions.")

_ADMIN = Path("secrets/mlflow_admin")

Model = Annotated[str, typer.Argument(help="name@alias or name/version.", metavar="MODEL")]

Account = Annotated[
    Path | None,
    typer.Option(help="File with the MLflow administrator's account.", show_default=f"{_ADMIN}, where it exists"),
]


class Mode(StrEnum):
    """Direction of a metric: lower or higher is better."""

    MIN = "min"
    MAX = "max"


Better = Annotated[
    Mode | None,
    typer.Option("--mode", help="Direction of the metric: min or max (default max)."),
]


@app.callback(invoke_without_command=True)
def models(context: typer.Context, as_json: Json = False) -> None:
    """Models by name: list, promote, download; webhooks for promotions."""
    if context.invoked_subcommand is None:
        list_models(as_json)


@app.command("list")
def list_models(as_json: Json = False) -> None:
    """List registered models with their aliases."""
    from mlplatform.registry.models import models as registered

    if as_json:
        return print_json(
            {"name": name, "latest": latest, "aliases": aliases} for name, latest, aliases in registered()
        )
    rows = [
        (name, latest, ", ".join(f"{alias} = {version}" for alias, version in sorted(aliases.items())))
        for name, latest, aliases in registered()
    ]
    print_table(["Model", "Latest version", "Aliases"], rows)


@app.command()
def show(model: Model) -> None:
    """Show the job, code and data behind a model, and verify its files."""
    from mlplatform.registry.lineage import describe
    from mlplatform.registry.models import verify

    for name, value in describe(model).items():
        print(f"{name:8} {value}")
    print(f"files    {verify(model)}")


@app.command()
def promote(
    model: Model,
    alias: Annotated[str, typer.Option(help="Alias to point at it.")] = "champion",
    metric: Annotated[str | None, typer.Option(help="Reject if the current version is better by this metric.")] = None,
    mode: Better = None,
) -> None:
    """Point an alias at a version, and notify the webhooks."""
    from mlplatform.registry import lookup
    from mlplatform.registry import models as registry_models

    version = lookup.resolve(model)
    registry_models.promote(version.name, version.version, alias, metric=metric, mode=mode.value if mode else None)
    print(f"{version.name}@{alias} is version {version.version}.")


@app.command()
def download(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="Created if missing; an earlier download in it is replaced.")],
) -> None:
    """Download a model's files and verify them."""
    from mlplatform.registry import models as registry_models

    print(registry_models.download(model, folder))


@app.command()
def best(experiment: str, metric: str, mode: Better = None) -> None:
    """Show the finished run of an experiment with the best value of a metric."""
    from mlplatform.registry import models as registry_models
    from mlplatform.tracking import server

    run = registry_models.best_run(experiment, metric, mode.value if mode else None)
    print(f"{run.info.run_id}  {run.info.run_name}  {metric} = {run.data.metrics[metric]:g}\n{server.run_url(run)}")


@app.command("webhooks")
def list_webhooks(account: Account = None, as_json: Json = False) -> None:
    """List the webhooks for promotions."""
    from mlplatform.registry import webhooks

    found = webhooks.webhooks(_administrator(account))
    if as_json:
        return print_json({"id": webhook.id, "name": webhook.name, "url": webhook.url} for webhook in found)
    for webhook in found:
        print(f"{webhook.id}  {webhook.name}  {webhook.url}")


@app.command()
def add_webhook(
    url: Annotated[str, typer.Argument(help="URL to which MLflow posts each promotion.")],
    secret_file: Annotated[Path, typer.Option(help="File with the secret that signs the messages.")],
    name: Annotated[str, typer.Option(help="Name in the list.")] = "promotions",
    account: Account = None,
) -> None:
    """Add a webhook for promotions."""
    from mlplatform.errors import SettingsError
    from mlplatform.registry import webhooks

    # A file, because other users of the machine can read a command line.
    if not secret_file.is_file():
        raise SettingsError(
            f"The file {secret_file} does not exist; `openssl rand -hex 32 >{secret_file}` makes a secret."
        )
    added = webhooks.add(url, secret_file.read_text().strip(), name=name, account=_administrator(account))
    print(f"{added.id}  {added.name}  {added.url}")


@app.command("test-webhook")
def try_webhook(webhook_id: str, account: Account = None) -> None:
    """Send a test delivery; exit 1 if the receiver rejects it."""
    from mlplatform.registry import webhooks

    webhooks.send_example(webhook_id, _administrator(account))
    print("The receiver accepted the test delivery.")


@app.command()
def remove_webhook(webhook_id: str, account: Account = None) -> None:
    """Remove a webhook."""
    from mlplatform.registry import webhooks

    webhooks.remove(webhook_id, _administrator(account))
    print(f"Webhook {webhook_id} is removed.")


def _administrator(account: Path | None) -> Path | None:
    return account or (_ADMIN if _ADMIN.is_file() else None)
