"""Users, read-only file systems, health checks and start order of every service in the compose files."""

from pathlib import Path
from typing import Any

import pytest
from compose_files import checkout, joined_host

from mlplatform_stack import declared

ROOT = {"ownership", "food11-data", "hub", "link", "copier", "backup", "backup-timer", "restore"}
"""Documented in docs/security.md: each has one to three capabilities, and none runs code of users."""

GPU_EXPORTERS = {"dcgm-exporter", "amd-exporter"}
"""They run as their images define: as root, and with files of their own. No test can start them without GPUs."""

WRITABLE = {"ray-head", "ray-worker", "ray-worker-0", "ray-worker-1", "notebook", *GPU_EXPORTERS}
"""Jobs and notebooks install packages and write where they like."""


OF_IMAGES = {"platform": "27002:27002", "ray": "27003:27003", "notebook": "27003:27003", "proxy": "27009:27009"}
"""Users of the images that we build; `test_ownership.py` compares them with the Dockerfiles."""


@pytest.fixture(params=["cpu", "cuda", "rocm", "joined host"])
def services(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "joined host":
        return joined_host()
    return declared.services(checkout(tmp_path, ACCELERATOR=request.param))


def test_containers_but_those_of_jobs_are_read_only(services: dict[str, dict[str, Any]]) -> None:
    writable = {name for name, service in services.items() if not service.get("read_only")}
    assert writable == WRITABLE & services.keys()


def test_long_running_containers_have_health_checks(services: dict[str, dict[str, Any]]) -> None:
    lasting = {name: service for name, service in services.items() if service["restart"] != "no"}
    assert len(lasting) >= 4
    assert not [name for name, service in lasting.items() if not service.get("healthcheck", {}).get("test")]


def test_users_are_high_ids_of_one_group_of_services(services: dict[str, dict[str, Any]]) -> None:
    users = {name: service.get("user") for name, service in services.items()}
    assert {name for name, user in users.items() if user == "root"} == ROOT & services.keys()
    of_image = {
        name: str(service["image"]).removeprefix("mlplatform-").partition(":")[0] for name, service in services.items()
    }
    groups: dict[str, set[str]] = {}
    for name in services.keys() - GPU_EXPORTERS - ROOT:
        user = users[name] or OF_IMAGES[of_image[name]]
        assert declared.facts(services[name]).get("owner", user) == user, name
        groups.setdefault(user, set()).add(of_image[name])
    assert min(int(user.partition(":")[0]) for user in groups) >= 20000, "an id that hosts give to somebody"
    shared = {user: images for user, images in groups.items() if len(images) > 1}
    assert all(images <= {"ray", "notebook", "link"} for images in shared.values()), shared


def test_volumes_have_owner_before_services_start(services: dict[str, dict[str, Any]]) -> None:
    given = {mount.split(":")[0] for mount in services["ownership"]["volumes"]}

    def follows(name: str) -> bool:
        before = services[name].get("depends_on", {})
        if before.get("ownership", {}).get("condition") == "service_completed_successfully":
            return True
        return any(follows(other) for other in before if other in services)

    writing = {
        name
        for name, service in services.items()
        for mount in service.get("volumes", [])
        if mount.split(":")[0] in given and not mount.endswith(":ro") and name != "ownership"
    }
    assert len(writing) >= 2
    assert not [name for name in writing if not follows(name)]


def test_notebook_loads_models_from_volume_that_no_job_has(tmp_path: Path) -> None:
    stack = declared.services(checkout(tmp_path))
    notebook = stack["notebook"]
    folders = {Path(notebook["environment"][name]) for name in ("HF_HUB_CACHE", "TORCH_HOME")}
    mounts = {Path(target): name for name, target, *_ in (volume.split(":") for volume in notebook["volumes"])}
    volumes = {next(mounts[parent] for parent in folder.parents if parent in mounts) for folder in folders}
    users = {
        name
        for name, service in {**stack, **joined_host()}.items()
        if volumes & {volume.split(":")[0] for volume in service.get("volumes", [])}
    }
    assert users - {"ownership"} == {"notebook"}, "another service could write what the notebook loads"
