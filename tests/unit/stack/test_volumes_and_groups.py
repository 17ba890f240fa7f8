"""Volumes, groups and pins that the guides rely on, read from the compose files without Docker."""

import re
import shlex
import subprocess
from itertools import chain
from pathlib import Path

import pytest
import yaml
from compose_files import checkout

from mlplatform_stack import declared

CHECKOUT = Path(__file__).parents[3]
COMPOSE = CHECKOUT / "compose"


def test_down_removes_containers_but_no_volume() -> None:
    dry = ["make", "--dry-run", "--no-print-directory", "down"]
    (line,) = subprocess.run(dry, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.splitlines()
    compose, _, options = line.partition(" down ")
    assert "--profile '*'" in compose, "services of a profile would stay"
    removed = [word for word in shlex.split(options) if word.startswith("--vol") or re.fullmatch(r"-\w*v\w*", word)]
    assert removed == []


def test_notebook_keeps_work_on_named_volume() -> None:
    described = yaml.safe_load((COMPOSE / "notebook.yaml").read_text())
    volumes = described["services"]["notebook"]["volumes"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in volumes}
    # Without an entry there, it would be a folder of the host.
    assert mounted["/home/jovyan/work"] in described["volumes"]


@pytest.mark.parametrize("layout", ["host", "gpu"])
def test_every_container_with_amd_gpu_has_its_groups(tmp_path: Path, layout: str) -> None:
    """`/dev/kfd` belongs to the host's group render, or video in older distributions."""
    root = checkout(tmp_path, ACCELERATOR="rocm", WORKER_LAYOUT=layout)
    services = declared.services(root)
    joined = declared.inherited(COMPOSE / "accelerator.rocm.yaml", "worker-of-host", {})
    services["ray-worker of a joined host"] = joined
    with_gpu = {name: made for name, made in services.items() if "/dev/kfd" in made.get("devices", [])}
    others = {"amd-exporter", "ray-worker of a joined host"}
    assert {"ray-worker-0", *others} <= with_gpu.keys()
    for name, made in with_gpu.items():
        groups = made.get("group_add", [])
        assert "video" in groups, name
        assert any("RENDER_GID" in group for group in groups), name


def test_pin_of_ray_is_version_that_compat_was_read_in() -> None:
    """A change of the pin needs tests/stack/test_losses.py and tests/stack/test_failures.py as well."""
    pinned = re.search(r"^ray==([\d.]+)", (CHECKOUT / "images/ray/requirements.txt").read_text(), re.MULTILINE)
    assert pinned
    folder = CHECKOUT / "platform"
    seen = {
        file.name: re.findall(r"[Ss]een in Ray (\d+\.\d+\.\d+)", file.read_text())
        for file in sorted(chain(folder.glob("*/*/compat/ray_*.py"), folder.glob("warm/*/ray/[!_]*.py")))
    }
    assert {name: versions for name, versions in seen.items() if set(versions) != {pinned[1]}} == {}
