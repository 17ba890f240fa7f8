"""A second host that has none of our images takes them from a bundle, Ray's among them."""

from __future__ import annotations

from pathlib import Path

import pytest
from host import Stack, wait_for
from second_host import CPUS, second_host
from test_hosts import NODE, has_node
from test_hosts import hub as hub

from mlplatform.client.jobs import Jobs
from mlplatform.scheduling.resources import Resources


@pytest.mark.nightly
@pytest.mark.usefixtures("hub")
def test_host_without_images_joins_from_bundle(stack: Stack, jobs: Jobs, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "name.py").write_text("import socket; print(socket.gethostname())")
    with second_host(stack) as host:
        (host.checkout / ".venv").unlink()
        host.join(f"BUNDLE={bundle}")
        wait_for(lambda: has_node(stack), "the second host's node")
        job = jobs.submit(["python", "name.py"], tmp_path / "job", name="name", resources=Resources(CPUS))
        assert jobs.wait(job, timeout_s=120).status == "SUCCEEDED", jobs.logs(job)
        assert NODE in jobs.logs(job)
        host.make("leave")
        wait_for(lambda: has_node(stack, alive=False), "the node to be gone", 60)
