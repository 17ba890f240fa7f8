"""Owners of the stack's volumes: the users of the services that use them."""

from __future__ import annotations

import json
from pathlib import Path

from host import Stack, run

from mlplatform.services.ownership import OWNERS, VOLUMES, Ids


def volumes_have_owners_of_services(stack: Stack) -> None:
    wrong = {name: ids for name, (user, ids) in volumes(stack).items() if ids != OWNERS[user]}
    assert not wrong, f"volumes of other owners: {wrong}"


def volumes(stack: Stack) -> dict[str, tuple[str, Ids]]:
    """The user that each volume is meant for, and the ids of its top folder now."""
    service = json.loads(stack.compose("config", "--format", "json").stdout)["services"]["ownership"]
    found = {}
    for mount in service["volumes"]:
        user = Path(mount["target"]).relative_to(VOLUMES).parts[0]
        name = f"{stack.container('mlplatform')}_{mount['source']}"
        folder = Path(run("docker", "volume", "inspect", "--format", "{{.Mountpoint}}", name).stdout.strip())
        status = folder.stat()
        found[mount["source"]] = (user, (status.st_uid, status.st_gid))
    assert len(found) > 10
    return found
