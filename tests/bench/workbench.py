"""The running stack, and what the measurements do with it: run jobs, time commands, crash services."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import failure_training as training_job
from harness import RESULT
from host import Stack, run, wait_for

from mlplatform.client.jobs import Jobs

BENCH = Path(__file__).parent
FIRST_LINE = "The first line of user code."
FOLDER = "/tmp/bench"
WORKERS = ("ray-worker-0", "ray-worker-1")

COLD = {"MLPLATFORM_WARM_START": "0"}
"""Environment of a job whose processes start cold."""

LONG_PAIRS = 3
"""Pairs of measurements that take minutes; the interval of two pairs would be 13 deviations wide."""


class NotMeasuredError(Exception):
    """A job or a command of the benchmark failed; the message contains the end of its output."""


class Bench:
    """The running stack, and helpers shared by the measurements."""

    def __init__(self, root: Path, jobs: Jobs, quick: bool, pairs: int, token: Path | None = None) -> None:
        """Prepare to measure on a checkout's stack: so many pairs, or a short one if `quick`.

        `token` is a file with the token of the person as whom `jobs` submits; None with the shared token.
        """
        self.stack = Stack(root)
        self.quick = quick
        self.pairs = 1 if quick else pairs
        self.long_pairs = 1 if quick else LONG_PAIRS
        self.jobs = jobs
        self.variables: Mapping[str, str] = {}
        """Environment of commands on this host, in which they reach the stack as `jobs` does."""
        self._token = token

    # --- Jobs ---

    def job(self, script: str, *arguments: str) -> dict[str, list[tuple[float, float]]]:
        """Run a script as a job and return the pairs that it measured, by name."""
        command = ["python", "-m", f"scripts.{script}", f"--pairs={self.pairs}", *arguments]
        job_id = self.submit([*command, *(["--quick"] if self.quick else [])], script)
        lines = list(self.jobs.follow(job_id))
        found = [line.partition(RESULT)[2] for line in lines if RESULT in line]
        if self.jobs.get(job_id).status != "SUCCEEDED" or not found:
            raise NotMeasuredError(f"Job {job_id} measured nothing:\n" + "\n".join(lines[-30:]))
        return json.loads(found[-1])

    def submit(self, command: Sequence[str], name: str, env: Mapping[str, str] | None = None) -> str:
        """Submit a command that runs in a copy of this folder."""
        return self.jobs.submit(command, BENCH, name=f"bench-{name}", env=env)

    def driver_node(self, job_id: str) -> str:
        """The service whose node runs a job's driver."""
        return str(self.jobs.attempts(job_id)[-1].node)

    def remove_files(self, job_id: str) -> None:
        """Delete a job's checkpoints."""
        client = self.stack.s3
        for key in self.stack.objects("ray", f"{job_id}/"):
            client.delete_object(Bucket="ray", Key=key)

    def wait_for_templates(self) -> None:
        """Wait until processes can start warm on every worker."""

        def are_ready() -> bool:
            socket = ("test", "-S", "/tmp/warm/driver.sock")
            return all(self.stack.execute(worker, *socket, check=False).returncode == 0 for worker in WORKERS)

        wait_for(are_ready, "the templates of both workers; WARM_START=0 turns them off", 120)

    # --- Commands ---

    def seconds(self, folder: str, *command: str, until: str = "") -> float:
        """Time a command in the notebook, to its end or to the first line that contains `until`.

        Waits for the submitted job to end, so that it does not slow down the next measurement.
        """
        watched = self.timed("notebook", folder, [*(["--until", until] if until else []), "--", *command])
        job_id = str(watched["job"])
        self.jobs.wait(job_id, timeout_s=300)
        self.remove_files(job_id)
        return float(watched["seconds"])

    def seconds_until_error(self, folder: str, *command: str) -> float:
        """Time a command in the notebook that prints an error and submits no job."""
        return float(self.timed("notebook", folder, ["--no-job", "--exit-code=1", "--", *command])["seconds"])

    def seconds_on_worker(self, *command: str) -> float:
        """Time a command that starts cold on a worker's node, outside of jobs."""
        return float(self.timed(WORKERS[0], FOLDER, ["--no-job", "--", *command], **COLD)["seconds"])

    def timed(self, service: str, folder: str, words: Sequence[str], **variables: str) -> dict[str, Any]:
        """Run the stopwatch, with these words, in a folder of a service's container; return what it measured."""
        options = [f"--env={name}={value}" for name, value in variables.items()]
        container = self.stack.container(service)
        command = ("docker", "exec", *options, "--workdir", folder, container, "python", f"{FOLDER}/stopwatch.py")
        printed = run(*command, *words, check=False)
        if printed.returncode:
            raise NotMeasuredError(f"`{' '.join(words)}` failed:\n{printed.stdout[-3000:]}{printed.stderr[-1000:]}")
        return json.loads(printed.stdout.splitlines()[-1])

    def gateway(self, *options: str) -> Any:
        """Run `scripts/gateway.py` in the notebook, outside of jobs, and return what it measured."""
        printed = self.stack.execute("notebook", "python", f"{FOLDER}/gateway.py", *options).stdout
        return json.loads(printed.rpartition(RESULT)[2])

    # --- Failures ---

    def recovery(self, victims: Callable[[str], Sequence[str]]) -> float:
        """Seconds from the crash of services during a training to its next new step."""
        job_id = training_job.submit(self.jobs, 300, 1)
        training_job.after_a_checkpoint(self.jobs, job_id, more=4)
        crashed = victims(job_id)
        seconds = training_job.recovery(
            self.jobs,
            job_id,
            lambda: [training_job.crash(self.stack, one) for one in crashed],
            # Training continues if only the head is down.
            workers_restart=set(crashed) != {"ray-head"},
        )
        self.jobs.stop(job_id)
        self.jobs.wait(job_id, timeout_s=120)
        training_job.whole_again(self.stack)
        return seconds

    # --- Files in the containers ---

    def new_job(self, service: str = "notebook", **files: str) -> str:
        """Create a folder in a container with a job new to the stack; `files` are named without their suffix."""
        folder = f"{FOLDER}/{secrets.token_hex(4)}"
        self.stack.write(service, f"{folder}/hello.py", f"print({FIRST_LINE!r}, flush=True)  # {folder}\n")
        for name, text in files.items():
            suffix = {"runtime": ".json", "requirements": ".txt"}.get(name, ".py")
            self.stack.write(service, f"{folder}/{name}{suffix}", text)
        return folder

    def prepare(self) -> None:
        """Copy to the containers what measures there."""
        self.stack.write("notebook", f"{FOLDER}/cluster_token", self.stack.secret("cluster_token"))
        if self._token:
            self.stack.write("notebook", f"{FOLDER}/token", self._token.read_text())
        for service in ("notebook", WORKERS[0]):
            self.copy(service, "scripts/stopwatch.py")
        self.copy(WORKERS[0], "scripts/trivial_torchrun.py")
        # Once, because several measurements of `--quick` may run the script at the same time.
        for file in ("harness.py", "scripts/gateway.py"):
            self.copy("notebook", file)

    def clean_up(self) -> None:
        for service in ("notebook", WORKERS[0]):
            self.stack.execute(service, "rm", "-rf", FOLDER, check=False)

    def copy(self, service: str, file: str) -> None:
        """Copy a file of this folder to a container."""
        self.stack.write(service, f"{FOLDER}/{Path(file).name}", (BENCH / file).read_text())
