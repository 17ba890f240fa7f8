"""Rows about dev environments: how soon people can work in one, and what an idle connection costs a job."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

import httpx
from harness import ALONE, RESULT, TOGETHER, Row, interleaved
from host import CHECKOUT, run
from workbench import COLD, Bench, NotMeasuredError

from mlplatform.dev.environment import ENTRYPOINT, until_ready

PROGRAM = str(CHECKOUT / ".venv/bin/mlplatform")


@contextmanager
def environment(bench: Bench, env: Mapping[str, str] | None) -> Iterator[str]:
    """Start a dev environment without resources, as `mlplatform dev start` does; yield its id once it can be used."""
    job_id = bench.jobs.submit(ENTRYPOINT, None, job_id=f"bench-dev-{secrets.token_hex(4)}", env=env)
    try:
        for _ in until_ready(bench.jobs, job_id):
            pass
        yield job_id
    finally:
        bench.jobs.stop(job_id)
        bench.jobs.wait(job_id, timeout_s=120)


def page(bench: Bench, env: Mapping[str, str] | None = None) -> float:
    """Seconds from the start of an environment until JupyterLab's page is there."""
    begun = time.perf_counter()
    with environment(bench, env) as job_id:
        address = urlsplit(bench.jobs.lab(job_id))
        # Browsers know names below `localhost`; resolvers do not.
        reached = {"base_url": f"http://127.0.0.1:{address.port}", "headers": {"Host": address.netloc}, "timeout": 60}
        with httpx.Client(follow_redirects=True, **reached) as browser:  # type: ignore[arg-type]
            browser.get(f"{address.path}?{address.query}").raise_for_status()
        return time.perf_counter() - begun


def prompt(bench: Bench, env: Mapping[str, str] | None = None) -> float:
    """Seconds from the start of an environment until a shell in it has run a command."""
    begun = time.perf_counter()
    with environment(bench, env) as job_id:
        run(PROGRAM, "ssh", job_id, "--", "true", env=bench.variables)
        return time.perf_counter() - begun


def steps(bench: Bench) -> list[tuple[float, float]]:
    """Seconds of a step of a job with an idle shell, and without."""
    command = ["python", "-m", "scripts.steps", f"--pairs={bench.pairs}"]
    job_id = bench.submit(command, "steps")
    shell = None
    for line in bench.jobs.follow(job_id):
        if line == ALONE:
            shell = subprocess.Popen([PROGRAM, "ssh", job_id, "--", "sleep 600"], env=bench.variables)
        elif line == TOGETHER and shell:
            shell.terminate()
            shell.wait()
        elif RESULT in line:
            found: list[tuple[float, float]] = json.loads(line.partition(RESULT)[2])["steps"]
            return found
    raise NotMeasuredError(f"Job {job_id} measured nothing:\n{bench.jobs.logs(job_id)[-2000:]}")


def dev(bench: Bench) -> list[Row]:
    if not bench.quick:
        bench.wait_for_templates()
        page(bench)  # warm-up
    pages = interleaved(partial(page, bench), partial(page, bench, COLD), bench.pairs)
    prompts = interleaved(partial(prompt, bench), partial(prompt, bench, COLD), bench.pairs)
    return [
        Row("dev-page: from dev start to JupyterLab's page, by 5 s", "s", [(warm, 5.0) for warm, _ in pages], 1.0),
        Row("dev-page-cold: the same by a cold start", "s", pages, 1.0),
        Row("dev-prompt: from dev start to a shell's first command, by 3 s", "s", [(w, 3.0) for w, _ in prompts], 1.0),
        Row("dev-prompt-cold: the same by a cold start", "s", prompts, 1.0),
        Row("dev-connection: steps with an idle shell by those without", "s", steps(bench), 1.05),
    ]
