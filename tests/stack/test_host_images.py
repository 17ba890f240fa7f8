"""A second host that has none of our images gets them from the first one, Ray's among them."""

from __future__ import annotations

from pathlib import Path

import pytest
from host import Stack, wait_for
from second_host import CPUS, second_host
from test_hosts import NODE, has_node, joined
from test_hosts import hub as hub

from mlplatform.client.jobs import Jobs
from mlplatform.scheduling.resources import Resources


@pytest.mark.nightly
@pytest.mark.usefixtures("hub")
def test_host_without_images_gets_all_from_the_first(stack: Stack, jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "name.py").write_text("import socket; print(socket.gethostname())")
    listed = ("image", "ls", "--format", "{{.Repository}}:{{.Tag}} {{.Size}}", "mlplatform-*")
    with second_host(stack) as host:
        assert host.docker(*listed).stdout == ""
        joined(host)
        print(host.docker(*listed).stdout)
        job = jobs.submit(["python", "name.py"], tmp_path, name="name", resources=Resources(CPUS))
        assert jobs.wait(job, timeout_s=120).status == "SUCCEEDED", jobs.logs(job)
        assert NODE in jobs.logs(job)
        host.make("leave")
        wait_for(lambda: has_node(stack, alive=False), "the node to be gone", 60)
