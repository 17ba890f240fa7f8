"""`mlplatform data ...`: data sets by name and digest."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from mlplatform.cli.output import Json, print_list

app = typer.Typer(no_args_is_help=True, help="Data sets by name and digest: upload, list, download.")


@app.command()
def put(
    source: Annotated[Path, typer.Argument(help="Folder or file to upload.")],
    name: Annotated[str, typer.Argument(help="Name for jobs to use.")],
) -> None:
    """Upload a folder or a file under a name; files that are already stored are not uploaded again."""
    from mlplatform.registry import datasets

    kept = datasets.put(source, name)
    print(f"{kept.name}@{kept.digest[:12]}  {len(kept.sums)} files  {kept.uri}")


@app.command("list")
def list_data(as_json: Json = False) -> None:
    """List data sets with all versions, the latest of each last."""
    from rich.filesize import decimal

    from mlplatform.registry import datasets

    found: list[dict[str, Any]] = [
        {
            "name": data.name,
            "digest": data.digest,
            "files": len(data.sums),
            "bytes": data.size,
            "uploaded": data.modified.isoformat(),
            "by": data.user,
        }
        for data in datasets.list_datasets()
    ]
    print_list(
        found,
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
) -> None:
    """Download a data set and verify its checksums."""
    from mlplatform.registry import datasets

    print(datasets.find(name).download(folder))
