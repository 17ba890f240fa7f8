"""Detached actors end with the job that created them, and no others do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded import instance_of
from waiting import wait_for

from mlplatform.client.connection import Connection
from mlplatform.client.jobs import Jobs
from mlplatform.local.instance import Home
from mlplatform.local.platform import LocalPlatform
from mlplatform.settings.job import Settings
from mlplatform_gateway.ray.leftovers import PREFIX

SCRIPT = """
import sys, time
from pathlib import Path
import ray

@ray.remote(num_cpus=0.1)
class Holder:
    def ready(self):
        return True

ray.init()
holder = Holder.options(name=sys.argv[1], namespace="test", lifetime="detached").remote()
ray.get(holder.ready.remote())
print("holds", flush=True)
while len(sys.argv) > 2 and not Path(sys.argv[2]).exists():
    time.sleep(0.1)
"""


def states(connection: Connection) -> dict[str, str]:
    """Ray's state of each Holder by its name."""
    answer = connection.call("GET", "/api/v0/actors", params={"detail": 1, "limit": 1000}).json()
    rows = answer["data"]["result"]["result"]
    return {row["name"]: row["state"] for row in rows if row["class_name"] == "Holder"}


@pytest.fixture
def head(local: LocalPlatform, reached: Settings) -> Iterator[Connection]:
    """Ray itself, behind the gateway."""
    address = instance_of(local).dashboard_address
    of_head = {"ray_address": address, "ray_auth_token_path": Home(local.home).cluster_token}
    with Connection(reached.model_copy(update=of_head)) as connection:
        yield connection


@pytest.mark.nightly
def test_detached_actor_ends_with_its_job_only(reached: Settings, head: Connection, tmp_path: Path) -> None:
    (tmp_path / "hold.py").write_text(SCRIPT)
    release = tmp_path / "release"
    with Jobs(reached) as jobs:
        running = jobs.submit(["python", "hold.py", "running", str(release)], tmp_path)
        wait_for(lambda: "holds" in jobs.logs(running), "the first job's actor")
        ended = jobs.submit(["python", "hold.py", "ended"], tmp_path)
        wait_for(lambda: jobs.get(ended).status == "SUCCEEDED", "the second job's end")
        wait_for(lambda: states(head)["ended"] == "DEAD", "the end of its actor")
        assert states(head)["running"] == "ALIVE"
        release.touch()
        wait_for(lambda: states(head)["running"] == "DEAD", "the end of the first job's actor")
    wait_for(lambda: not own_jobs(head), "the end of the jobs that end actors")


def own_jobs(head: Connection) -> list[str]:
    """Submission ids of the jobs that end actors."""
    ids = [str(job["submission_id"]) for job in head.call("GET", "/api/jobs/").json()]
    return [job_id for job_id in ids if job_id.startswith(PREFIX)]
