"""`mlplatform data ...`: data sets by name and digest."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlplatform.cli.output import Json, print_list, print_result

if TYPE_CHECKING:
    from mlplatform.registry.datasets import Dataset

app = typer.Typer(no_args_is_help=True, help="Data sets by name and digest: upload, list, download.")


@app.command()
def put(
    source: Annotated[Path, typer.Argument(help="Folder or file to upload.")],
    name: Annotated[str, typer.Argument(help="Name for jobs to use.")],
    as_json: Json = False,
) -> None:
    """Upload a folder or a file under a name; files that are already stored are not uploaded again."""
    from mlplatform.registry import datasets

    kept = datasets.put(source, name)
    shown = f"{kept.name}@{kept.digest[:12]}  {len(kept.sums)} files  {kept.uri}"
    print_result({**_fields(kept), "uri": kept.uri}, as_json, shown)


@app.command("list")
def list_data(as_json: Json = False) -> None:
    """List data sets with all versions, the latest of each last."""
    from rich.filesize import decimal

    from mlplatform.registry import datasets

    print_list(
        list(map(_fields, datasets.list_datasets())),
        as_json,
        ["Data set", "Files", "Size", "Uploaded", "By"],
        lambda data: (
            f"{data['name']}@{data['digest'][:12]}",
            str(data["files"]),
            decimal(data["bytes"]),
            f"{datetime.fromisoformat(data['uploaded']).astimezone():%Y-%m-%d %H:%M}",
            data["by"],
        ),
    )


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="name for the latest, or name@digest.")],
    folder: Annotated[Path, typer.Argument(help="New or empty.")],
    as_json: Json = False,
) -> None:
    """Download a data set and verify its checksums."""
    from mlplatform.registry import datasets

    found = datasets.find(name)
    path = str(found.download(folder))
    print_result({**_fields(found), "folder": path}, as_json, path)


def _fields(data: Dataset) -> dict[str, Any]:
    return {
        "name": data.name,
        "digest": data.digest,
        "files": len(data.sums),
        "bytes": data.size,
        "uploaded": data.modified.isoformat(),
        "by": data.user,
    }
