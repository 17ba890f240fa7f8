"""`mlplatform models ...`: the model registry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mlplatform.cli.output import Json, print_json, print_list, print_result

app = typer.Typer(help="Models by name: list, show, promote, download.")

Model = Annotated[str, typer.Argument(help="name@alias or name/version.", metavar="MODEL")]


Better = Annotated[
    Literal["min", "max"] | None, typer.Option("--mode", help="Direction of the metric: min or max (default max).")
]


@app.callback(invoke_without_command=True)
def models(context: typer.Context, as_json: Json = False) -> None:
    """Models by name: list, show, promote, download."""
    if context.invoked_subcommand is None:
        list_models(as_json)


@app.command("list")
def list_models(as_json: Json = False) -> None:
    """List registered models with their aliases."""
    from mlplatform.registry.models import models as registered

    found = [{"name": name, "latest": latest, "aliases": aliases} for name, latest, aliases in registered()]
    print_list(found, as_json, ["Model", "Latest version", "Aliases"], _row)


@app.command()
def show(model: Model, as_json: Json = False) -> None:
    """Show the job, code and data behind a model, and verify its files."""
    from mlplatform.registry.lineage import describe
    from mlplatform.registry.models import verify

    facts = describe(model)
    if as_json:
        return print_json([{**facts, "files": verify(model)}])
    for name, value in facts.items():
        print(f"{name:8} {value}")
    print(f"files    {verify(model)}")


@app.command()
def promote(
    model: Model,
    alias: Annotated[str, typer.Option(help="Alias to point at it.")] = "champion",
    metric: Annotated[str | None, typer.Option(help="Reject if the current version is better by this metric.")] = None,
    mode: Better = None,
    as_json: Json = False,
) -> None:
    """Point an alias at a version."""
    from mlplatform.registry import lookup
    from mlplatform.registry import models as registry_models

    version = lookup.resolve(model)
    registry_models.promote(version.name, version.version, alias, metric=metric, mode=mode)
    result = {"name": version.name, "version": str(version.version), "alias": alias}
    print_result(result, as_json, f"{version.name}@{alias} is version {version.version}.")


@app.command()
def download(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="Created if missing; an earlier download in it is replaced.")],
    as_json: Json = False,
) -> None:
    """Download a model's files and verify them."""
    from mlplatform.registry import models as registry_models

    path = str(registry_models.download(model, folder))
    print_result({"model": model, "folder": path}, as_json, path)


@app.command()
def best(experiment: str, metric: str, mode: Better = None, as_json: Json = False) -> None:
    """Show the finished run of an experiment with the best value of a metric."""
    from mlplatform.registry import models as registry_models
    from mlplatform.tracking import server

    run = registry_models.best_run(experiment, metric, mode)
    value, page = run.data.metrics[metric], server.run_url(run)
    shown = f"{run.info.run_id}  {run.info.run_name}  {metric} = {value:g}\n{page}"
    print_result({"run": run.info.run_id, "name": run.info.run_name, "value": value, "page": page}, as_json, shown)


def _row(model: Mapping[str, Any]) -> tuple[str, ...]:
    aliases = ", ".join(f"{alias} = {version}" for alias, version in sorted(model["aliases"].items()))
    return model["name"], model["latest"], aliases
