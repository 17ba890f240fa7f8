"""`mlplatform dev ...`: a shell, JupyterLab or an editor with resources of the cluster, through the queue."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mlplatform.cli.output import Json, explained, print_json, print_list, print_result, seconds_in, span

app = typer.Typer(no_args_is_help=True, help="Dev environments: a shell, JupyterLab or an editor with GPUs.")

Name = Annotated[str, typer.Option(help="Its name among your own.")]


@app.command()
def start(
    name: Name = "main",
    gpus: Annotated[float, typer.Option(min=0, help="GPUs that it holds.")] = 0,
    cpus: Annotated[float, typer.Option(min=0, help="CPUs that it holds.")] = 1,
    limit: Annotated[
        str | None, typer.Option(help="Time limit, as in 8h, after which it leaves for others (default: the team's).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start an environment, or find the one that is open, and wait until it can be used."""
    from mlplatform.client.jobs import Jobs, Resources
    from mlplatform.dev import environment, ssh

    limit_s = None if limit is None else seconds_in(limit, "--limit")
    with Jobs() as client:
        job_id = environment.start(client, name, Resources(cpus=cpus, gpus=gpus), limit_s)
        try:
            with explained(client, job_id):
                for line in environment.until_ready(client, job_id):
                    print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
        except KeyboardInterrupt:
            print(f"\n{job_id} stays in the queue; `mlplatform dev stop --name {name}` ends it.", file=sys.stderr)
            raise SystemExit(130) from None
        if as_json:
            return print_json([client.get(job_id)])
    print(f"`mlplatform dev open --name {name}` opens JupyterLab, `mlplatform ssh {job_id}` a shell;")
    print(f"editors connect to {ssh.host(job_id)} (`mlplatform ssh --config`).")


@app.command("open")
def open_lab(
    name: Name = "main",
    job: Annotated[str, typer.Option(help="Open JupyterLab in this running job instead.")] = "",
    browser: Annotated[bool, typer.Option(help="Open the page in the browser of this machine.")] = True,
    as_json: Json = False,
) -> None:
    """Print the address of JupyterLab in an environment, which is valid once, for a minute, and open it."""
    import webbrowser

    from mlplatform.client.jobs import Jobs
    from mlplatform.dev import environment

    with Jobs() as client:
        address = client.lab(job or environment.job_id(client, name))
    print_result({"address": address}, as_json, address)
    if browser and not as_json:
        webbrowser.open(address)


@app.command("list")
def list_environments(as_json: Json = False) -> None:
    """List environments, latest first."""
    from mlplatform.client.jobs import Jobs
    from mlplatform.dev import environment

    with Jobs() as client:
        found = environment.environments(client)
    print_list(
        found,
        as_json,
        ["Environment", "Status", "User", "Started", "Ended"],
        lambda job: (job.id, job.status, job.user, span(job.started), span(job.ended)),
    )


@app.command()
def stop(name: Name = "main", as_json: Json = False) -> None:
    """End an environment; its files stay."""
    from mlplatform.cli import jobs

    jobs.stop(_job_id(name), as_json)


def _job_id(name: str) -> str:
    from mlplatform.client.jobs import Jobs
    from mlplatform.dev import environment

    with Jobs() as client:
        return environment.job_id(client, name)
