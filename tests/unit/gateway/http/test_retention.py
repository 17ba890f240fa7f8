"""Listing and removal of old data over HTTP, for `make prune`."""

import json
import os

from started_gateway import StartedGateway

KIND = "packages of old jobs"


def test_prune_removes_what_it_lists_and_is_recorded(started: StartedGateway) -> None:
    packages = started.folder / "files" / "packages"
    packages.mkdir()
    for name, needed in (("_ray_pkg_old.zip", False), ("_ray_pkg_new.zip", True)):
        (packages / name).write_text("12345")
        os.utime(packages / name, (0, 0))
        if needed:
            started.add("needs", runtime_env={"working_dir": f"gcs://{name}"})
    with started.running() as client:
        assert client.get("/platform/prune", headers={"Authorization": "Bearer wrong"}).status_code == 403
        listed = client.get("/platform/prune").json()
        assert listed == {"kinds": [{"kind": KIND, "count": 1, "files": 1, "bytes": 5}]}
        answer = client.post("/platform/prune")
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert lines == [{"kind": KIND, "name": "_ray_pkg_old.zip", "files": 1, "bytes": 5}]
        assert [path.name for path in packages.iterdir()] == ["_ray_pkg_new.zip"]
        assert client.get("/platform/prune").json()["kinds"][0]["count"] == 0
        last = client.get("/platform/audit").json()["entries"][-1]
    assert (last["verb"], last["object"], last["before"]) == ("prune", KIND, {"count": 1})
