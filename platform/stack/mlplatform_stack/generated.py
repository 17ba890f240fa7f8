"""Files that follow from the services' `x-mlplatform`, the settings and this host; `make env` and `make up` write them.

compose/stack.generated.yaml              workers, GPU exporters, owners of volumes, ports of the entrance, pages
docker/prometheus/services.generated.yml  what Prometheus scrapes
docker/proxy/sites.generated.caddy        sites of the TLS entrance
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlplatform.errors import SettingsError
from mlplatform.files import atomic
from mlplatform_stack import checkout, declared, entrance, services
from mlplatform_stack.declared import Service
from mlplatform_stack.host import Host, this_host
from mlplatform_stack.settings import Accelerator, StackSettings

FILE = Path("compose") / "stack.generated.yaml"
"""Its first line is a comment, the rest JSON, a subset of YAML."""

SCRAPES = Path("docker") / "prometheus" / "services.generated.yml"

SITES = Path("docker") / "proxy" / "sites.generated.caddy"

_BY = "# Written by `make env` and `make up`"

_WORKERS = "x-workers"


def write(root: Path, settings: StackSettings, host: Host, only: str | None = None) -> list[str]:
    """Write the files whose content changes; return their names.

    Args:
        only: half of the stack that is started, so that Prometheus expects nothing of the other.
    """
    contents = root / "compose" / "compose.yaml"
    # A failed upgrade returns to a checkout whose version may lack these files; a laptop has no compose files.
    if not contents.is_file() or FILE.name not in contents.read_text():
        return []
    shipped = declared.services(root, generated=False)
    present = number_of_workers(root) if _content(root).get(_WORKERS) == _kind(settings) else 0
    number = _count(settings, host, present)
    own = {**shipped, **_exporters(root, settings)}
    scrapes = f"{_BY}.\n{json.dumps({'scrape_configs': scrape_configs(own, settings, only)}, indent=2)}\n"
    texts = {
        FILE: render(root, settings, number, hashlib.sha256(scrapes.encode()).hexdigest()[:16]),
        SCRAPES: scrapes,
        SITES: f"{_BY}.\n{entrance.sites(services.pages(root))}",
    }
    changed = [file for file, text in texts.items() if not (root / file).is_file() or (root / file).read_text() != text]
    for file in changed:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        # Containers run as other users, and read the files in docker/.
        atomic.write(root / file, texts[file], 0o644)
    return [str(file) for file in changed]


def write_missing(root: Path, env: str = ".env") -> None:
    """Write the files if Compose would miss one, as after a `git pull` and before a `make up`."""
    if not (root / env).is_file() or (root / FILE).is_file():
        return
    try:
        settings = StackSettings.load(root / env)
    except SettingsError:
        return  # a verb that needs the settings reports it
    write(root, settings, this_host(), checkout.started(root)["only"])


def number_of_workers(root: Path) -> int:
    """Return the number of workers in the compose file that was written."""
    found = _content(root)["services"]
    return sum(re.fullmatch(r"ray-worker-\d+", name) is not None for name in found)


def render(root: Path, settings: StackSettings, number: int, digest: str) -> str:
    """Return the text of the compose file.

    Args:
        number: number of workers.
        digest: of what Prometheus scrapes; another one makes Compose restart it.
    """
    shipped = declared.services(root, generated=False)
    of_workers, of_exporters = _workers(settings, number), _exporters(root, settings)
    logs = [_logs(name) for name in of_workers]
    node = declared.inherited(root / "compose" / "base.yaml", "worker", {})
    owners = {**owners_of_volumes(shipped), **dict.fromkeys(logs, declared.facts(node).get("owner", ""))}
    pages = services.pages(root)
    content = {
        _WORKERS: _kind(settings),
        "services": {
            **of_workers,
            **{name: {"extends": {"file": _accelerator(settings), "service": name}} for name in of_exporters},
            "log-shipper": {
                "extends": {"file": "base.yaml", "service": "log-shipper"},
                "volumes": [f"{_logs(name)}:/logs/{name}:ro" for name in of_workers],
            },
            "ownership": {
                "command": [f"{volume}={owner}" for volume, owner in owners.items()],
                "volumes": [f"{volume}:/volumes/{volume}" for volume in owners],
            },
            "gateway": {"environment": {"MLPLATFORM_GATEWAY_TOOLS": front_page(pages)}},
            "prometheus": {
                "labels": {"mlplatform.scrapes": digest},
                "secrets": secrets_of_metrics({**shipped, **of_exporters}),
            },
            "proxy": {"ports": [f"${{BIND_ADDRESS}}:{page.written}:{page.inside}" for page in pages]},
        },
        "volumes": dict.fromkeys(logs),
    }
    return f"{_BY}; for another number of GPUs, delete it and run `make env`.\n{json.dumps(content, indent=2)}\n"


def owners_of_volumes(found: Mapping[str, Service]) -> dict[str, str]:
    """Return user and group of each volume: those of the service that writes it, unless that is root."""
    owners = {}
    for service in found.values():
        owner = declared.facts(service).get("owner") or str(service.get("user", ""))
        for mount in service.get("volumes", ()) if re.fullmatch(r"\d+:\d+", owner) else ():
            if re.match(r"[\w-]+:", mount) and not mount.endswith(":ro"):
                owners[mount.partition(":")[0]] = owner
    return owners


def scrape_configs(found: Mapping[str, Service], settings: StackSettings, only: str | None) -> list[dict[str, Any]]:
    """Return Prometheus' scrape configurations of the services that a start includes.

    An entry of a service's `metrics` is Prometheus' own, except for two keys: `job`, by default the service's name, and
    `port`, at which the service itself is scraped; without it, the entry has a discovery.
    """
    profiles, configs = set(services.profiles_of(settings, only)), []
    for name, service in found.items():
        is_started = not service.get("profiles") or not profiles.isdisjoint(service["profiles"])
        for entry in declared.facts(service).get("metrics", ()) if is_started else ():
            rest = {key: value for key, value in entry.items() if key not in ("job", "port")}
            target = {"static_configs": [{"targets": [f"{name}:{entry['port']}"]}]} if "port" in entry else {}
            configs.append({"job_name": entry.get("job", name), **rest, **target})
    return configs


def secrets_of_metrics(found: Mapping[str, Service]) -> list[str]:
    """Return the secrets with which Prometheus reads metrics, besides those that it has anyway."""
    text = json.dumps([declared.facts(service).get("metrics") for service in found.values()])
    return sorted(set(re.findall(r"/run/secrets/(\w+)", text)) - set(found["prometheus"]["secrets"]))


def front_page(pages: Sequence[services.Page]) -> str:
    """Return the list of pages to which the gateway's front page links, and at which address each answers."""
    tools = []
    for page in pages:
        if health := page.facts.get("health"):
            address = health if "://" in health else f"http://{page.service}:{page.inside}{health}"
            tool = {"title": page.title, "name": page.name, "profile": page.profile, "health": address}
            # Compose replaces the variable by a number.
            tools.append(f'{json.dumps(tool)[:-1]}, "port": {page.written}}}')
    return f"[{', '.join(tools)}]"


def _accelerator(settings: StackSettings) -> str:
    return f"accelerator.{settings.accelerator}.yaml"


def _exporters(root: Path, settings: StackSettings) -> dict[str, Service]:
    """Return the services of the accelerator's file that start; workers and notebooks extend the others."""
    file = root / "compose" / _accelerator(settings)
    return {name: declared.inherited(file, name, {}) for name, own in declared.of_file(file).items() if "image" in own}


def _kind(settings: StackSettings) -> str:
    """Return the accelerator and layout for which the number of workers in the file is valid."""
    return f"{settings.accelerator}.{settings.worker_layout}"


def _content(root: Path) -> dict[str, Any]:
    """Return what was written before; empty if there is nothing, or if a person has damaged it."""
    try:
        content: dict[str, Any] = json.loads((root / FILE).read_text().partition("\n")[2])
    except (OSError, ValueError):
        return {"services": {}}
    return content


def _count(settings: StackSettings, host: Host, present: int) -> int:
    """Return the number of workers.

    Args:
        present: number in the generated file, which stays while the host has a GPU for each; 0 for none.
    """
    if settings.worker_layout != "generated":
        return {"host": 1, "gpu": 2}[settings.worker_layout]
    most = max(host.gpus, 1)
    too_many = host.gpus > 0 and present > most
    return most if too_many or not present else present


def _workers(settings: StackSettings, number: int) -> dict[str, dict[str, Any]]:
    """Return the services of this many workers: one with all GPUs, or several with one each."""
    has_all = settings.worker_layout == "host"
    found = {}
    for index in range(number):
        name = f"ray-worker-{index}"
        found[name] = {
            "extends": {"file": _accelerator(settings) if has_all else "base.yaml", "service": "worker"},
            "container_name": f"${{STACK_PREFIX:-}}{name}",
            "hostname": name,
            **({} if has_all else _gpu(settings.accelerator, index)),
            "volumes": [f"{_logs(name)}:/tmp/ray"],
        }
    return found


def _logs(worker: str) -> str:
    """Return the name of the volume with a worker's session logs."""
    return f"{worker}-logs"


def _gpu(accelerator: Accelerator, index: int) -> dict[str, Any]:
    if accelerator == "cuda":
        device = {"driver": "nvidia", "device_ids": [str(index)], "capabilities": ["gpu"]}
        return {"deploy": {"resources": {"reservations": {"devices": [device]}}}}
    if accelerator == "rocm":
        # Render nodes are numbered from 128 (the kernel's drm_drv.c gives each kind 64 minors).
        devices = ["/dev/kfd", f"/dev/dri/renderD{128 + index}"]
        return {"devices": devices, "group_add": ["video", "${RENDER_GID:-44}"]}
    return {}
