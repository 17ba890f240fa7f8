"""Search for secrets in what containers show: definitions, logs, environments and command lines."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from figures import count
from host import Stack, run

Docker = Callable[..., subprocess.CompletedProcess[str]]

first_engine: Docker = partial(run, "docker")

OF_PROCESSES = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'"


def values(folder: Path) -> dict[str, str]:
    """Each secret's unguessable part: in files with several lines, the text after the last separator of a line."""
    found = {}
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            if line.lstrip().startswith("#"):
                continue  # a form to fill in, not a secret
            # Without the padding of base64, which would separate nothing.
            value = re.split(r"\s*[=:]\s*", line.rstrip("= "))[-1].strip()
            if len(value) >= 30:
                found[f"{file.name} {value[:3]}..."] = value
    assert found, "this looks for the secrets in the wrong place"
    return found


def of_services(stack: Stack, *services: str) -> list[dict[str, Any]]:
    """Output of `docker inspect` for the containers of some services, all of which must exist."""
    found = stack.by_service()
    return [found[service] for service in services]


def shown_by(containers: Iterable[dict[str, Any]], docker: Docker = first_engine) -> dict[str, str]:
    """Everything that containers show to a user of their Docker engine, by its place."""
    places = {}
    for entry in containers:
        name = entry["Name"].strip("/")
        places[f"definition of {name}"] = json.dumps([entry["Config"], entry["HostConfig"], entry["Args"]])
        logs = docker("logs", name, check=False)
        places[f"log of {name}"] = logs.stdout + logs.stderr
        if entry["State"]["Running"]:
            places[f"processes of {name}"] = docker("exec", name, "sh", "-c", OF_PROCESSES, check=False).stdout
            assert "PATH=" in places[f"processes of {name}"], f"nothing could be read in {name}"
    return places


def leaks(folder: Path, places: Mapping[str, str]) -> list[str]:
    """Which secret of a folder was found in which place; the places are counted."""
    count("places searched for secrets", len(places))
    secrets = values(folder).items()
    return [f"{secret} in the {place}" for place, text in places.items() for secret, value in secrets if value in text]
