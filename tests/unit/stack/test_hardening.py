"""Users, read-only file systems, health checks and start order of every service in the compose files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compose_files import services_of

from mlplatform.services.ownership import OWNERS
from mlplatform.stack.services import STORE

ROOT = {"ownership", "food11-data", "hub", "link", "copier", "backup", "backup-timer", "restore"}
"""Documented in docs/security.md: each has one to three capabilities, and none runs code of users."""

GPU_EXPORTERS = {"dcgm-exporter", "amd-exporter"}
"""They run as their images define: as root, and with files of their own. No test can start them without GPUs."""

WRITABLE = {"ray-head", "ray-worker", "ray-worker-0", "ray-worker-1", "notebook", *GPU_EXPORTERS}
"""Jobs and notebooks install packages and write where they like."""


@pytest.fixture(params=["*.yaml", "joined/*.yaml"], ids=["stack", "joined host"])
def services(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    return services_of(request.param)


def test_containers_but_those_of_jobs_are_read_only(services: dict[str, dict[str, Any]]) -> None:
    writable = {name for name, service in services.items() if not service.get("read_only")}
    assert writable == WRITABLE & services.keys()


def test_long_running_containers_have_health_checks(services: dict[str, dict[str, Any]]) -> None:
    lasting = {name: service for name, service in services.items() if service["restart"] != "no"}
    assert len(lasting) >= 4
    assert not [name for name, service in lasting.items() if not service.get("healthcheck", {}).get("test")]


def test_users_are_those_of_table(services: dict[str, dict[str, Any]]) -> None:
    users = {name: service.get("user") for name, service in services.items()}
    ours = {name for name, service in services.items() if str(service.get("image", "")).startswith("mlplatform-")}
    assert {name for name, user in users.items() if user == "root"} == ROOT & services.keys()
    for name in services.keys() - ours - GPU_EXPORTERS:
        if "image" in services[name]:
            group = "store" if name == STORE else name
            assert users[name] == ":".join(map(str, OWNERS[group])), name
    # Images of ours define the user; another one is that of a group in the table.
    chosen = {user for name, user in users.items() if name in ours and user not in (None, "root")}
    assert chosen <= {f"{uid}:{gid}" for uid, gid in OWNERS.values()}


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


def test_notebook_loads_models_from_volume_that_no_job_has() -> None:
    notebook = services_of("notebook.yaml")["notebook"]
    folders = {Path(notebook["environment"][name]) for name in ("HF_HUB_CACHE", "TORCH_HOME")}
    mounts = {Path(target): name for name, target, *_ in (volume.split(":") for volume in notebook["volumes"])}
    volumes = {next(mounts[parent] for parent in folder.parents if parent in mounts) for folder in folders}
    users = {
        name
        for name, service in services_of("**/*.yaml").items()
        if volumes & {volume.split(":")[0] for volume in service.get("volumes", [])}
    }
    assert users - {"ownership"} == {"notebook"}, "another service could write what the notebook loads"
