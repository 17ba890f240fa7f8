"""Run the branches of the tutorial's training repository, unmodified, on the running stack.

`make tutorial CHECKOUT=...` starts it. It runs the tutorial's commands in the notebook's container. If the workers only
declare their GPUs, it adds `cpu/sitecustomize.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host import CHECKOUT, Stack, run, wait_for
from memory import Peaks, peak_memory
from rich.console import Console
from rich.table import Table

from mlplatform.errors import HostError, PlatformError
from mlplatform_stack import docker

TUTORIAL = Path(__file__).parent
WORK = "/tmp/tutorial"
REPOSITORY = "gourmetgram-train"
BUCKET = "ray"
"""Bucket of the scripts' checkpoints."""

TRAIN_V1 = {"RAY_TRAIN_V2_ENABLED": "0"}
"""`Tuner(trainer)` is an API of Ray Train V1; docs/lessons.md names the switch."""

NEEDED = {"notebook", "gateway", "ray-head", "ray-worker-0", "mlflow"}


@dataclass(frozen=True)
class Step:
    """A command of the tutorial, with the branch that is checked out for it."""

    branch: str
    command: str
    folder: str = WORK
    variables: tuple[tuple[str, str], ...] = ()
    """Variables of the job's runtime environment, in addition to the tutorial's."""

    loses_worker: bool = False
    """Stop the training worker after a checkpoint, and start it again at the end."""


def in_terminal(branch: str) -> Step:
    return Step(branch, "python3 train.py", f"{WORK}/{REPOSITORY}")


def submitted(branch: str, options: str = "", **more: Any) -> Step:
    command = f"ray job submit --runtime-env runtime.json {options} --working-dir . -- python {REPOSITORY}/train.py"
    return Step(branch, command, **more)


STEPS = (
    in_terminal("main"),
    in_terminal("mlflow"),
    in_terminal("lightning"),
    submitted("lightning", "--entrypoint-num-gpus 1 --entrypoint-num-cpus 8 --verbose"),
    submitted("ray"),
    submitted("fault_tolerance", loses_worker=True),
    submitted("tune", variables=tuple(TRAIN_V1.items())),
)
BRANCHES = tuple(dict.fromkeys(step.branch for step in STEPS))


@dataclass(frozen=True)
class Outcome:
    step: Step
    failure: str
    """The error; empty on success."""

    seconds: float
    memory: Peaks


class Tutorial:
    """The tutorial's folder in the notebook's container."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.on_cpu = stack.settings.accelerator == "cpu"

    def prepare(self, source: Path) -> None:
        """Copy the repository, without uncommitted changes, and the two files that belong next to it."""
        asked = run("git", "-C", str(source), "rev-parse", "--path-format=absolute", "--git-common-dir")
        history = Path(asked.stdout.strip())
        self.stack.execute("notebook", "rm", "-rf", WORK)
        self.stack.execute("notebook", "mkdir", "-p", f"{WORK}/{REPOSITORY}/.git")
        self._unpack(history, f"{WORK}/{REPOSITORY}/.git")
        self._unpack(TUTORIAL / "work", WORK)
        if self.on_cpu:
            self._unpack(TUTORIAL / "cpu", WORK)

    def check_out(self, step: Step) -> None:
        git = ("git", "-C", f"{WORK}/{REPOSITORY}")
        self.stack.execute("notebook", *git, "switch", "--quiet", "--discard-changes", step.branch)
        runtime = json.loads((TUTORIAL / "work" / "runtime.json").read_text())
        runtime["env_vars"] |= dict(step.variables)
        self.stack.write("notebook", f"{WORK}/runtime.json", json.dumps(runtime))

    def run(self, step: Step) -> Outcome:
        """Run a step and show its output live."""
        self.check_out(step)
        print(f"\n--- {step.branch}: {step.command}", flush=True)
        # A job finds the module in its working directory; Python in a terminal needs PYTHONPATH.
        path = ("--env", f"PYTHONPATH={WORK}") if self.on_cpu and step.folder != WORK else ()
        begun = time.monotonic()
        with ExitStack() as afterwards:
            peaks = afterwards.enter_context(peak_memory(self.stack))
            known = self._checkpoints() if step.loses_worker else set()
            container = ("--workdir", step.folder, self.stack.container("notebook"))
            typed = subprocess.Popen(["docker", "exec", *path, *container, "bash", "-c", step.command])
            afterwards.callback(typed.kill)
            failure = self._lose_worker(known, afterwards) if step.loses_worker else ""
            code = typed.wait()
        return Outcome(step, failure or (f"exit code {code}" if code else ""), time.monotonic() - begun, peaks)

    def clean_up(self) -> None:
        self.stack.execute("notebook", "rm", "-rf", WORK, check=False)

    def _lose_worker(self, known: set[str], afterwards: ExitStack) -> str:
        """Stop the training worker once there is a checkpoint; return the error, empty on success."""
        try:
            wait_for(lambda: self._checkpoints() - known, "a checkpoint in bucket ray", 600)
            (lost, *_) = wait_for(self._training_nodes, "a training worker", 60)
            also = ", with the job's driver" if lost == self._driver_node() else ""
            print(f"--- docker stop {self.stack.container(lost)}{also}", flush=True)
            run("docker", "stop", self.stack.container(lost))
            afterwards.callback(run, "docker", "start", self.stack.container(lost))
            wait_for(
                lambda: self._training_nodes() - {lost}, f"the training to continue on a node other than {lost}", 300
            )
        except AssertionError as error:
            return str(error)
        return ""

    def _driver_node(self) -> str:
        """The service whose node runs the driver of the latest job."""
        newest = max(self.stack.ray.get("/api/jobs/").json(), key=lambda job: job["start_time"] or 0)
        return str(self.stack.ray.get(f"/platform/jobs/{newest['submission_id']}").json()["attempts"][-1]["node"])

    def _checkpoints(self) -> set[str]:
        return {key for key in self.stack.objects(BUCKET) if "/checkpoint_" in key}

    def _training_nodes(self) -> set[str]:
        """Services whose nodes run workers of Ray Train."""
        names = {node["raylet"]["nodeId"]: node["hostname"] for node in self.stack.alive_nodes()}
        actors = self.stack.ray.get("/api/v0/actors", params={"detail": "1", "limit": "1000"}).json()
        return {
            names[actor["node_id"]]
            for actor in actors["data"]["result"]["result"]
            if "TrainWorker" in actor["class_name"] and actor["state"] == "ALIVE" and actor["node_id"] in names
        }

    def _unpack(self, folder: Path, into: str) -> None:
        packed = subprocess.run(["tar", "--create", "--directory", folder, "."], capture_output=True, check=True)
        container = self.stack.container("notebook")
        unpack = ["tar", "--extract", "--no-same-owner", "--directory", into]
        subprocess.run(["docker", "exec", "--interactive", container, *unpack], input=packed.stdout, check=True)


def checked(root: Path, source: Path, branches: Sequence[str]) -> Stack:
    """Return the stack after checking that it has everything that the steps need.

    Raises:
        HostError: something is missing.
    """
    known = run("git", "-C", str(source), "branch", "--all", "--format=%(refname:lstrip=-1)", check=False)
    if known.returncode:
        raise HostError(
            f"{source} is not a git checkout; give one of the tutorial's {REPOSITORY}: make tutorial CHECKOUT=PATH."
        )
    if missing := set(branches) - set(known.stdout.split()):
        raise HostError(
            f"{source} has no branch {', '.join(sorted(missing))}; fetch it, or select existing branches with "
            f'BRANCHES="...".'
        )
    if missing := NEEDED - docker.running(root):
        raise HostError(f"The stack does not run {', '.join(sorted(missing))}; start it with `make up`.")
    stack = Stack(root)
    if stack.execute("notebook", "test", "-d", "/mnt/Food-11/training", check=False).returncode:
        raise HostError("There is no Food-11 on the stack; fill its volume with `make data SRC=...`.")
    return stack


def table(outcomes: Sequence[Outcome]) -> Table:
    made = Table("branch", "command in the notebook", "result", "time", "peak memory of a container")
    made.add_column("of all", no_wrap=True)
    for outcome in outcomes:
        result = f"[red]{outcome.failure}" if outcome.failure else "[green]passed"
        made.add_row(
            outcome.step.branch,
            outcome.step.command,
            result,
            f"{outcome.seconds:.0f} s",
            outcome.memory.largest(),
            f"{outcome.memory.total:.1f} GiB",
        )
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help=f"checkout of {REPOSITORY}")
    parser.add_argument("--root", type=Path, default=CHECKOUT, help="checkout whose stack is running")
    parser.add_argument("--branches", nargs="+", default=BRANCHES, choices=BRANCHES, metavar="NAME")
    args = parser.parse_args()
    try:
        tutorial = Tutorial(checked(args.root, args.source, args.branches))
        tutorial.prepare(args.source)
    except PlatformError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    try:
        outcomes = [tutorial.run(step) for step in STEPS if step.branch in args.branches]
    finally:
        tutorial.clean_up()
    Console().print("", table(outcomes), sep="\n")
    return int(any(outcome.failure for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
