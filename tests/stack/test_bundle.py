"""A stack on a second engine without images, in a network namespace that reaches nothing, from a bundle."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from host import Stack, run
from second_host import NAMESPACE, SecondHost, second_host

OFFLINE = {"COMPOSE_PROFILES": "tracking,ray,notebook", "DISK_NEEDED_GB": "2", "WARM_START": "0"}
"""Without monitoring, for the machine's memory."""


def refuses_half(host: SecondHost, archive: Path) -> None:
    half = archive.with_name("half.bundle")
    with archive.open("rb") as source, half.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
        target.truncate(archive.stat().st_size // 2)
    refused = host.make("up", f"BUNDLE={half}", check=False)
    half.unlink()
    assert "Nothing was changed" in refused.stderr, refused.stderr
    assert not host.docker("image", "ls", "--quiet").stdout
    assert not [name for name in (".env", "secrets", ".venv") if (host.checkout / name).exists()]


def trains_from(host: SecondHost, archive: Path) -> None:
    host.make("env", f"BUNDLE={archive}")
    Stack(host.checkout).set_env(**OFFLINE)
    print(host.make("up", f"BUNDLE={archive}").stdout[-2000:])
    printed = host.make("smoke").stdout
    assert "succeeded" in printed, printed[-3000:]
    assert "Test accuracy: 0.9" in printed


@pytest.mark.nightly
@pytest.mark.minio
@pytest.mark.timeout(2400)  # 5 GB are saved and loaded; two cores have needed 15 minutes
def test_main_job_succeeds_on_stack_from_bundle_without_network(checkout: Stack, tmp_path: Path) -> None:
    archive = tmp_path / "stack.bundle"
    print(checkout.make("bundle", f"TO={archive}").stdout[-300:])
    with second_host(checkout) as host:
        host.cut()
        assert run("nsenter", f"--net=/run/netns/{NAMESPACE}", "ip", "route", "show", "default").stdout == ""
        # As git would clone it: without settings, secrets and a virtual environment.
        (host.checkout / ".venv").unlink()
        refuses_half(host, archive)
        trains_from(host, archive)
