"""Modes of files in a checkout that was made under any umask: services read theirs, only the owner changes any."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mlplatform_stack import env as stack_env
from mlplatform_stack import env_file
from mlplatform_stack.host import Host

CHECKOUT = Path(__file__).parents[3]

MOUNTS = re.compile(r"^ +- \.\./([^:$]+)", re.M)


def checked_out(folder: Path, umask: int) -> Path:
    """A checkout as git writes it under a umask, with what `make env` writes under the same one."""
    paths = ["docker", "images", "platform/pyproject.toml", ".env.example", "compose"]
    listed = subprocess.run(["git", "ls-files", "-z", *paths], cwd=CHECKOUT, capture_output=True, check=True).stdout
    command = ["git", "checkout-index", "-z", "--stdin", f"--prefix={folder}/"]
    subprocess.run(command, cwd=CHECKOUT, input=listed, check=True, umask=umask)
    subprocess.run([sys.executable, "-m", "mlplatform", "stack", "env", "--root", folder], check=True, umask=umask)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_services_read_what_they_mount_and_images_contain(tmp_path: Path, umask: int) -> None:
    root = checked_out(tmp_path / "clone", umask)
    read = [path for name in ("docker", "images") for path in (root / name, *(root / name).rglob("*"))]
    assert root / "docker/prometheus/prometheus.yml" in read
    for path in read:
        wanted = 0o005 if path.is_dir() else 0o004
        assert mode(path) & wanted == wanted, path
    mounted = {name for path in (root / "compose").glob("*.yaml") for name in MOUNTS.findall(path.read_text())}
    # `.env` is for backups, which root makes.
    assert {name.partition("/")[0] for name in mounted} == {"docker", ".env"}
    assert (mode(root / "images/lock.sh"), mode(root / "images/ray/forks.pth")) == (0o755, 0o644)
    assert mode(root / "secrets") == 0o700
    assert {mode(path) for path in (root / "secrets").iterdir()} <= {0o444, 0o644}


def test_only_owner_changes_what_verbs_write(tmp_path: Path) -> None:
    root = checked_out(tmp_path / "clone", 0o000)
    before = os.umask(0)
    try:
        text = (root / ".env").read_text()
        (root / ".env").write_text(text.replace("\nWORKER_LAYOUT=gpu", "\nWORKER_LAYOUT=generated"))
        stack_env.write_env(root, Host(2**34, 8, "cuda", 4))
        env_file.change(root / ".env", {"COMPOSE_PROFILES": "hosts"})
    finally:
        os.umask(before)
    written = [root / ".env", *(root / "secrets").iterdir()]
    written += [path for name in ("compose", "docker") for path in (root / name).rglob("*.generated.*")]
    assert {path.name: mode(path) & 0o022 for path in written} == {path.name: 0 for path in written}
    kinds = {path.name.partition(".")[0] for path in written}
    assert {"stack", "services", "sites", "alertmanager"} <= kinds
