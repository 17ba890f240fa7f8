"""Use of running jobs in the output of `mlplatform top`."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

from command_line import mlplatform
from waiting import wait_for

from mlplatform.capacity.resources import Resources
from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings

COMPUTES = """
while True:
    sum(range(1000))
"""

BUSY = {
    "script": COMPUTES,
    "child": f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTES!r}])",
    "driver": f"import ray; ray.init(){COMPUTES}",
}


def test_running_jobs_appear_with_their_use(reached: Settings, tmp_path: Path) -> None:
    row = re.compile(rf"^(\S+) +{reached.user} +([\d.]+) +([\d.]+) GiB +- +python busy.py$", re.MULTILINE)

    def busy() -> set[str]:
        shown = mlplatform("top", "--once", **reached.environment()).stdout
        assert re.search(r"^Node .*\n\S+ +[\d.]+ of [\d.]+ +[\d.]+ of [\d.]+ GiB$", shown, re.MULTILINE), shown
        # A tenth of a core, because the machine may be busy with others.
        return {job_id for job_id, cpus, memory in row.findall(shown) if float(cpus) >= 0.1 and float(memory) > 0}

    with Jobs(reached) as jobs, ExitStack() as ends:
        started = set()
        for name, program in BUSY.items():
            (folder := tmp_path / name).mkdir()
            (folder / "busy.py").write_text(program)
            job_id = jobs.submit("python busy.py", folder, name=name, resources=Resources(cpus=0.1))
            ends.callback(jobs.wait, job_id, timeout_s=30)
            ends.callback(jobs.stop, job_id)
            started.add(job_id)
        wait_for(lambda: busy() == started, "the use of each job")
