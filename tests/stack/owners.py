"""Owners of the stack's volumes: the users of the services that use them."""

from __future__ import annotations

import json
from pathlib import Path

from host import Stack, run

from mlplatform_stack.bootstrap.ownership import Ids, parse


def volumes_have_owners_of_services(stack: Stack) -> None:
    wrong = {name: present for name, (wanted, present) in volumes(stack).items() if present != wanted}
    assert not wrong, f"volumes of other owners: {wrong}"


def volumes(stack: Stack) -> dict[str, tuple[Ids, Ids]]:
    """The ids that each volume is meant for, and those of its top folder now."""
    service = json.loads(stack.compose("config", "--format", "json").stdout)["services"]["ownership"]
    wanted, found = parse(service["command"]), {}
    for mount in service["volumes"]:
        name = f"{stack.project}_{mount['source']}"
        folder = Path(run("docker", "volume", "inspect", "--format", "{{.Mountpoint}}", name).stdout.strip())
        status = folder.stat()
        found[mount["source"]] = (wanted[mount["source"]], (status.st_uid, status.st_gid))
    assert len(found) > 10
    return found
