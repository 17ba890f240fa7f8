"""Users of the containers: one of its own for each group of services, whom no user of the host can pass for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from figures import count
from host import Stack, run

from mlplatform_stack import declared
from mlplatform_stack.bootstrap.ownership import parse

OF_IMAGES = {"platform": 27002, "ray": 27003, "minio": 27001}
"""Ids in the Dockerfiles of the images that we build."""

OF_HOSTS = (1000, 1001, 999, 65534)
"""Ids that users of hosts have: the first persons, the first system user, and nobody."""


def users(stack: Stack) -> dict[str, int]:
    """The user id of each service that runs: the one in the compose files, or that of the image that we build."""
    found = {}
    for name, service in declared.services(stack.root).items():
        image = service["image"].removeprefix("mlplatform-").partition(":")[0]
        user = declared.facts(service).get("owner") or service.get("user", "")
        found[name] = OF_IMAGES[image] if image in OF_IMAGES and not user else user.partition(":")[0]
    return {name: int(found[name]) for name in stack.running()}


def test_every_process_runs_as_user_of_its_group(stack: Stack) -> None:
    expected = users(stack)
    for service, entry in stack.running().items():
        listed = run("docker", "top", entry["Id"], "-eo", "pid,uid").stdout.splitlines()[1:]
        assert {int(line.split()[1]) for line in listed} == {expected[service]}, service
    service = json.loads(stack.compose("config", "--format", "json").stdout)["services"]["ownership"]
    tops = {mount["source"]: stack.volume(mount["source"]).stat() for mount in service["volumes"]}
    owners = {name: (top.st_uid, top.st_gid) for name, top in tops.items()}
    assert len(owners) > 10
    wanted = parse(service["command"])
    assert owners == {name: wanted[name] for name in owners}


def read_secret(uid: int, pid: int, secret: str, gid: int | None = None) -> bool:
    """Return whether a user of this host can read a secret through a process of a container."""
    user = ("setpriv", f"--reuid={uid}", f"--regid={uid if gid is None else gid}", "--clear-groups", "--no-new-privs")
    result = run(*user, "sha256sum", f"/proc/{pid}/root{secret}", check=False)
    assert not result.returncode or "Permission denied" in result.stderr, result.stderr
    return not result.returncode


def test_host_users_cannot_read_secrets_of_containers(stack: Stack) -> None:
    tried, of_services = 0, users(stack)
    for service, entry in stack.running().items():
        secrets = [mount["Destination"] for mount in entry["Mounts"] if "/secrets/" in mount.get("Source", "")]
        own = of_services[service]
        others = sorted(set(of_services.values()) - {own})
        pid = entry["State"]["Pid"]
        # Grafana's group is root's. The kernel compares groups as well.
        group = Path(f"/proc/{pid}").stat().st_gid
        for secret in secrets[:1]:
            assert read_secret(own, pid, secret, group), f"{service}: the attempt itself does not work"
            for uid in (*OF_HOSTS, *others):
                assert not read_secret(uid, pid, secret), f"user {uid} reads {secret} of {service}"
                tried += 1
    count("attempts of host users to read secrets", tried)
    assert tried > 50


@pytest.mark.minio
@pytest.mark.parametrize("image", [*OF_IMAGES, "link", "proxy"])
def test_no_program_of_image_changes_user(stack: Stack, image: str) -> None:
    tag = f"mlplatform-{image}:{stack.settings.mlplatform_version}"
    find = ("docker", "run", "--rm", "--network=none", "--user=0", "--entrypoint=find", tag)
    assert run(*find, "/", "-xdev", "-perm", "/6000").stdout == ""
