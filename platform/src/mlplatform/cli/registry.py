"""`mlplatform models ...` and `mlplatform data ...`: what jobs have made, and what they are made from."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

models_app = typer.Typer(help="Models by name: list, promote, download, and who is told of a promotion.")

data_app = typer.Typer(no_args_is_help=True, help="Data sets by name and digest: keep one, list them, fetch one.")

_ADMIN = Path("secrets/mlflow_admin")

Model = Annotated[str, typer.Argument(help="name@alias or name/version.", metavar="MODEL")]

Account = Annotated[
    Path | None,
    typer.Option(help="File with the MLflow administrator's account.", show_default=f"{_ADMIN}, where it exists"),
]


class Mode(StrEnum):
    """Whether a lower or a higher value is better."""

    MIN = "min"
    MAX = "max"


Better = Annotated[
    Mode | None,
    typer.Option("--mode", help="Whether lower (min) or higher (max) is better; max if not said."),
]


@models_app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """Models by name: list, promote, download, and who is told of a promotion."""
    if context.invoked_subcommand is None:
        list_models()


@models_app.command("list")
def list_models() -> None:
    """List registered models with their aliases."""
    from rich.console import Console
    from rich.table import Column, Table

    from mlplatform.registry.models import models as registered

    table = Table(Column("Model", no_wrap=True), "Latest version", "Aliases", box=None)
    for name, latest, aliases in registered():
        table.add_row(name, latest, ", ".join(f"{alias} = {version}" for alias, version in sorted(aliases.items())))
    Console(markup=False, emoji=False).print(table)


@models_app.command()
def show(model: Model) -> None:
    """Show which job, code and data made a model."""
    from mlplatform.registry.models import describe

    for name, value in describe(model).items():
        print(f"{name:8} {value}")


@models_app.command()
def promote(
    model: Model,
    alias: Annotated[str, typer.Option(help="Alias to point at it.")] = "champion",
    metric: Annotated[str | None, typer.Option(help="Refuse where the present one is better by this metric.")] = None,
    mode: Better = None,
) -> None:
    """Point an alias at a version, and have the receivers told."""
    from mlplatform.registry import models as registry_models

    version = registry_models.resolve(model)
    registry_models.promote(version.name, version.version, alias, metric=metric, mode=mode.value if mode else None)
    print(f"{version.name}@{alias} is version {version.version}.")


@models_app.command()
def download(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="Made if it is missing; an earlier download in it is replaced.")],
) -> None:
    """Fetch a model's files and check them."""
    from mlplatform.registry import models as registry_models

    print(registry_models.download(model, folder))


@models_app.command()
def best(experiment: str, metric: str, mode: Better = None) -> None:
    """Show the finished run of an experiment with the best value of a metric."""
    from mlplatform.registry import models as registry_models
    from mlplatform.tracking import server

    run = registry_models.best_run(experiment, metric, mode.value if mode else None)
    print(f"{run.info.run_id}  {run.info.run_name}  {metric} = {run.data.metrics[metric]:g}\n{server.run_url(run)}")


@models_app.command("webhooks")
def list_webhooks(account: Account = None) -> None:
    """List the receivers that are told of promotions."""
    from mlplatform.registry import webhooks

    for webhook in webhooks.webhooks(_administrator(account)):
        print(f"{webhook.id}  {webhook.name}  {webhook.url}")


@models_app.command()
def add_webhook(
    url: Annotated[str, typer.Argument(help="Where MLflow posts each promotion to.")],
    secret_file: Annotated[Path, typer.Option(help="File with the secret that signs the messages.")],
    name: Annotated[str, typer.Option(help="For the list.")] = "promotions",
    account: Account = None,
) -> None:
    """Have a program told of every promotion."""
    from mlplatform.errors import SettingsError
    from mlplatform.registry import webhooks

    # A file, because other users of the machine can read a command line.
    if not secret_file.is_file():
        raise SettingsError(f"There is no file {secret_file}; `openssl rand -hex 32 >{secret_file}` makes a secret.")
    added = webhooks.add(url, secret_file.read_text().strip(), name=name, account=_administrator(account))
    print(f"{added.id}  {added.name}  {added.url}")


@models_app.command("test-webhook")
def try_webhook(webhook_id: str, account: Account = None) -> None:
    """Post an example to a receiver; exit 1 if it does not take it."""
    from mlplatform.registry import webhooks

    webhooks.send_example(webhook_id, _administrator(account))
    print("The receiver took it.")


@models_app.command()
def remove_webhook(webhook_id: str, account: Account = None) -> None:
    """Tell a receiver no more."""
    from mlplatform.registry import webhooks

    webhooks.remove(webhook_id, _administrator(account))
    print(f"Webhook {webhook_id} is removed.")


@data_app.command()
def put(
    source: Annotated[Path, typer.Argument(help="Folder or file to keep.")],
    name: Annotated[str, typer.Argument(help="What jobs call it.")],
) -> None:
    """Keep a folder or a file under a name; what is there already is not sent again."""
    from mlplatform.registry import datasets

    kept = datasets.put(source, name)
    print(f"{kept.name}@{kept.digest[:12]}  {len(kept.sums)} files  {kept.uri}")


@data_app.command("list")
def list_data() -> None:
    """List data sets with all their versions, the latest of each last."""
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Column, Table

    from mlplatform.registry import datasets

    table = Table(Column("Data set", no_wrap=True), "Files", "Size", "Put", "By", box=None)
    for found in datasets.list_datasets():
        put_at = f"{found.modified.astimezone():%Y-%m-%d %H:%M}"
        table.add_row(
            f"{found.name}@{found.digest[:12]}", str(len(found.sums)), decimal(found.size), put_at, found.user
        )
    Console(markup=False, emoji=False).print(table)


@data_app.command()
def get(
    name: Annotated[str, typer.Argument(help="name for the latest, or name@digest.")],
    folder: Annotated[Path, typer.Argument(help="New or empty.")],
) -> None:
    """Fetch a data set and check it."""
    from mlplatform.registry import datasets

    print(datasets.find(name).download(folder))


def _administrator(account: Path | None) -> Path | None:
    return account or (_ADMIN if _ADMIN.is_file() else None)
