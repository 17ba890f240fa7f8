"""Rows about packages that jobs add to the image's: the first job with a list or a lock, and the next one."""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from harness import Row, interleaved
from host import CHECKOUT, run, wait_for
from rows_submission import PLAIN, plain_submit, since_start
from workbench import FIRST_LINE, FOLDER, Bench

TUTORIAL_PACKAGES = ["torch", "torchvision", "lightning", "boto3", "s3fs"]
"""The packages of the tutorial's requirements.txt."""

_OTHERS = ["colorama", "einops", "humanize", "loguru", "more-itertools", "python-slugify", "roman", "tabulate", "toolz"]

_PLAIN_RAY = "plain-ray"
"""Name of a container, as if it were a service of the stack."""

_RUN = ("--runtime-env", "runtime.json", "--working-dir", ".", "--", "python", "hello.py")

_PROJECT = """\
[project]
name = "bench"
version = "0.1"
requires-python = ">=3.11"
dependencies = {dependencies}
"""


def marked() -> str:
    """A package with a marker that is true everywhere: it makes a list new, and installs the same."""
    return f'iniconfig==2.1.0; platform_machine != "bench-{secrets.token_hex(4)}"'


def with_list(bench: Bench, packages: list[str], service: str = "notebook") -> str:
    """Folder in a container with a job that is new to the stack, and has a list of pip packages."""
    index = run(sys.executable, "-m", "pip", "config", "get", "global.index-url", check=False).stdout.strip()
    variables = {"FOOD11_DATA_DIR": "/mnt/Food-11", **({"PIP_INDEX_URL": index} if index else {})}
    runtime = json.dumps({"pip": "requirements.txt", "env_vars": variables})
    return bench.new_job(service, requirements="\n".join(packages) + "\n", runtime=runtime)


def ours(bench: Bench, packages: list[str] | None = None) -> float:
    """Seconds to the first line of a job with a list, by default one that no node has installed."""
    folder = with_list(bench, packages or [*TUTORIAL_PACKAGES, marked()])
    return bench.seconds(folder, *PLAIN, *_RUN, until=FIRST_LINE)


def plugins(bench: Bench) -> float:
    """Seconds to the first line of a job with a new list, on a Ray that installs it by its own plugin."""
    folder = with_list(bench, [*TUTORIAL_PACKAGES, marked()], _PLAIN_RAY)
    command = ["--until", FIRST_LINE, "--", "ray", "job", "submit", *_RUN]
    return float(bench.timed(_PLAIN_RAY, folder, command)["seconds"])


@contextmanager
def plain_ray(bench: Bench) -> Iterator[None]:
    """A container of the image with a Ray of its own, without the platform, beside those of the stack."""
    name, image = bench.stack.container(_PLAIN_RAY), f"mlplatform-ray:{bench.stack.settings.mlplatform_version}"
    start = ("ray", "start", "--head", "--block", "--disable-usage-stats")
    run("docker", "run", "--detach", "--init", "--name", name, "--shm-size=1g", image, *start)
    try:
        answers = partial(bench.stack.execute, _PLAIN_RAY, "ray", "job", "list", check=False)
        wait_for(lambda: answers().returncode == 0, "a plain Ray", 180)
        bench.copy(_PLAIN_RAY, "scripts/stopwatch.py")
        yield
    finally:
        run("docker", "rm", "--force", "--volumes", name)


def locked(bench: Bench, folder: Path) -> None:
    """Write a project with a new lock: the image's torch and ten other packages."""
    pins = (CHECKOUT / "images/ray/requirements.in").read_text().splitlines()
    dependencies = [next(pin for pin in pins if pin.startswith("torch==")), *_OTHERS, marked()]
    text = _PROJECT.format(dependencies=json.dumps(dependencies))
    there = f"{FOLDER}/{secrets.token_hex(4)}"
    bench.stack.write("notebook", f"{there}/pyproject.toml", text)
    bench.stack.execute("notebook", "uv", "lock", "--quiet", "--project", there)
    (folder / "pyproject.toml").write_text(text)
    (folder / "uv.lock").write_text(bench.stack.execute("notebook", "cat", f"{there}/uv.lock").stdout)
    (folder / "hello.py").write_text("import time\nimport torch\nprint(time.time())\n")


def with_lock(bench: Bench) -> tuple[float, float]:
    """Seconds from the start of an attempt to the line after `import torch`, for a new lock and for the next job.

    That one may run on another node, which then installs the lock as well.
    """
    with tempfile.TemporaryDirectory() as folder:
        locked(bench, Path(folder))
        command = ["uv", "run", "hello.py"]
        first, following = [
            since_start(bench, bench.jobs.submit(command, Path(folder), name="bench-lock")) for _ in range(2)
        ]
    return first, following


def environments(bench: Bench) -> list[Row]:
    if bench.quick:
        print("Skipped environments: it takes minutes.")
        return []
    with plain_ray(bench):
        new = interleaved(partial(ours, bench), partial(plugins, bench), bench.long_pairs)
    known = [*TUTORIAL_PACKAGES, marked()]
    ours(bench, known)  # installs it on a node
    ours(bench, known)  # perhaps on the other one
    following = interleaved(partial(ours, bench, known), partial(plain_submit, bench), bench.pairs)
    locks = [with_lock(bench) for _ in range(bench.long_pairs)]
    of_list, of_lock = "environments: first line with a new list of the tutorial", "environments-lock: line after"
    return [
        Row(f"{of_list} by Ray's own plugin", "s", new, 0.15),
        Row("environments-next: the same for the next job by a job without a list", "s", following, 1.3),
        Row(f"{of_lock} `import torch` with a new lock, by 20 s", "s", [(first, 20.0) for first, _ in locks], 1.0),
        Row(
            "environments-lock-next: the same for the next job, by 2 s", "s", [(next_, 2.0) for _, next_ in locks], 1.0
        ),
    ]
