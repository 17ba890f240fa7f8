"""`mlplatform ssh` opens a shell in a running job, and has what editors need for that."""

from __future__ import annotations

from typing import Annotated

import typer


def ssh(
    job_id: Annotated[str, typer.Argument(help="Id of the job.")] = "",
    command: Annotated[
        list[str] | None, typer.Argument(help="Command to run there, after `--` (default: a shell).")
    ] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Rank of its training (default: its entry point).")] = None,
    config: Annotated[bool, typer.Option("--config", help="Print the entry for ~/.ssh/config, for editors.")] = False,
    proxy: Annotated[bool, typer.Option("--proxy", hidden=True)] = False,
) -> None:
    """Open a shell in a running job of your own, with its folder, variables and GPUs."""
    from mlplatform.dev import ssh

    if config:
        print(ssh.config(), end="")
    elif not job_id:
        raise typer.BadParameter("pass the id of a job, or --config.", param_hint="JOB_ID")
    elif proxy:
        ssh.carry(job_id)
    else:
        ssh.run(job_id, rank, command or ())
