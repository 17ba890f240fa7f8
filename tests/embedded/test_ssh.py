"""The way of `mlplatform ssh` to a job's node: over the gateway and Ray's agent, to a process there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from waiting import wait_for

from mlplatform.client.jobs import Jobs
from mlplatform.settings.environment import environment
from mlplatform.settings.job import Settings


def test_embedded_platform_names_its_alternative(reached: Settings, tmp_path: Path) -> None:
    with Jobs(reached) as jobs:
        job = jobs.submit("sleep 600", tmp_path)
        wait_for(lambda: jobs.get(job).status == "RUNNING", "the job to run")
        variables = environment() | reached.environment() | {"HOME": str(tmp_path)}
        command = [sys.executable, "-m", "mlplatform", "ssh", job, "--", "echo inside"]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
        jobs.stop(job)
    # A developer's machine may have OpenSSH's server, which then serves its user.
    assert "open a terminal instead" in done.stderr or done.stdout == "inside\n", done
