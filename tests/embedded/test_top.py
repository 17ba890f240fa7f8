"""Use of a running job in the output of `mlplatform top`."""

from __future__ import annotations

import re
from pathlib import Path

from command_line import mlplatform
from waiting import wait_for

from mlplatform.capacity.resources import Resources
from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings

BUSY = """
import ray
ray.init()
while True:
    sum(range(1000))
"""


def test_running_job_appears_with_its_use(reached: Settings, tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)

    def row() -> re.Match[str] | None:
        shown = mlplatform("top", "--once", **reached.environment()).stdout
        assert re.search(r"^Node .*\n\S+ +[\d.]+ of [\d.]+ +[\d.]+ of [\d.]+ GiB$", shown, re.MULTILINE), shown
        return re.search(rf"^{job_id} +{reached.user} +([\d.]+) +([\d.]+) GiB +- +python busy.py$", shown, re.MULTILINE)

    with Jobs(reached) as jobs:
        job_id = jobs.submit("python busy.py", tmp_path, name="busy", resources=Resources(cpus=1))
        try:
            # A tenth of a core, because the machine may be busy with others.
            wait_for(lambda: (found := row()) and float(found[1]) >= 0.1 and float(found[2]) > 0, "the job's use")
        finally:
            jobs.stop(job_id)
            jobs.wait(job_id, timeout_s=30)
