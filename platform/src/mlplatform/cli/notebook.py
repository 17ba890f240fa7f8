"""`mlplatform stack notebook`: the notebooks of people on the stack's host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlplatform.cli.checkout import Root


def notebook(
    person: Annotated[str, typer.Argument(help="Name of the person, as of `mlplatform people add`.")],
    remove: Annotated[bool, typer.Option(help="Remove the notebook; its files stay in their volume.")] = False,
    root: Root = Path(),
) -> None:
    """Make a JupyterLab for one person, in the place of the shared one, and print its link; or remove it.

    It has a token, files and a network of its own, and no account of the stack: the person logs in once.
    """
    from mlplatform.stack import notebook_file, notebooks

    root = root.absolute()
    if not remove:
        link, started = notebooks.add(root, person)
        print(f"The notebook of {person}{'' if started else ', as soon as `make up` has started it'}:\n")
        print(f"  {link}\n")
        print("Whoever has the link can use it. Jobs, MLflow and storage need the person's own token: in a terminal of")
        print(f"this notebook, once, `mlplatform login` with the code of `mlplatform people add {person}`.")
        print("The shared notebook, which has everybody's accounts, ends with the next `make up`.")
        return
    volumes = notebooks.remove(root, person)
    print(f"The notebook of {person} is removed. Its files stay; to delete them: docker volume rm {' '.join(volumes)}")
    if not notebook_file.read_ports(root):
        print(
            "Nobody has one any more, so that the next `make up` starts the shared notebook again, with the accounts of"
        )
        print("everybody, unless you remove `notebook` from COMPOSE_PROFILES in .env.")
