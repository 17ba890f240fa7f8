"""Sizes that `make env` chooses, on hosts from a laptop to eight GPUs, and settings that no longer fit."""

import re
from pathlib import Path

import pytest

from mlplatform_stack import env as stack_env
from mlplatform_stack import env_file, sizing
from mlplatform_stack.host import Host
from mlplatform_stack.settings import StackSettings
from mlplatform_stack.sizing import GIB

HOSTS = {
    "runner in CI": Host(7 * GIB, 2),
    "laptop": Host(16 * GIB, 8),
    "24 GB machine": Host(23 * GIB, 2),
    "workstation with one GPU": Host(64 * GIB, 16, "cuda", 1),
    "two GPUs, as in the tutorial": Host(128 * GIB, 32, "rocm", 2, render_gid="992"),
    "server with eight GPUs": Host(1024 * GIB, 192, "cuda", 8),
}
each_host = pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)


def written(root: Path, host: Host) -> StackSettings:
    """Settings of the `.env` that `make env` writes on a host."""
    stack_env.write_env(root, host)
    return StackSettings.load(root / ".env")


@each_host
def test_limits_fit_host_and_leave_services_room(root: Path, host: Host) -> None:
    settings = written(root, host)
    assert list(sizing.misfits(settings, host)) == []
    assert settings.worker_object_store < settings.worker_shm <= settings.worker_memory
    workers = 2 if settings.worker_layout == "gpu" else 1
    left = host.memory - settings.ray_head_memory - 2 * GIB
    assert workers * settings.worker_memory <= left
    # The notebook shares the workers' part: together, their limits may exceed the host.
    assert settings.notebook_memory <= left


def test_sizes_on_machine_of_24_gb(root: Path) -> None:
    settings = written(root, HOSTS["24 GB machine"])
    assert (settings.worker_layout, settings.worker_memory, settings.worker_shm) == ("gpu", 8 * GIB, 4 * GIB)
    assert (settings.worker_object_store, settings.ray_head_memory) == (GIB, 4 * GIB)
    assert (settings.notebook_memory, settings.notebook_shm) == (8 * GIB, 4 * GIB)


@each_host
def test_every_chosen_size_states_its_reason(root: Path, host: Host) -> None:
    lines = stack_env.write_env(root, host)
    assert lines[0] == ".env for this host:"
    text = (root / ".env").read_text()
    sized = [line for line in lines if line.startswith("  ")]
    assert len(sized) >= 10
    for line in sized:
        setting, reason = line.strip().split(": ", 1)
        assert f"\n{setting}\n" in text
        assert reason


@pytest.mark.parametrize(
    ("name", "layout", "gpus", "cpus"),
    [
        ("runner in CI", "host", 0, 8),
        ("24 GB machine", "gpu", 0, 8),
        ("workstation with one GPU", "host", 1, 16),
        ("two GPUs, as in the tutorial", "gpu", 1, 16),
        ("server with eight GPUs", "host", 8, 192),
    ],
)
def test_workers_get_all_gpus_and_cpus(root: Path, name: str, layout: str, gpus: int, cpus: int) -> None:
    host = HOSTS[name]
    settings = written(root, host)
    assert (settings.worker_layout, settings.worker_gpus) == (layout, gpus)
    assert (settings.accelerator, settings.render_gid) == (host.accelerator, host.render_gid)
    assert ("gpu-metrics" in settings.compose_profiles.split(",")) == bool(host.gpus)
    assert f"\nWORKER_CPUS={cpus}\n" in (root / ".env").read_text()


def laid_out(root: Path, host: Host, layout: str, **changed: str) -> StackSettings:
    """Settings of a `.env` whose layout, and then others, a person has changed before the next `make env`."""
    stack_env.write_env(root, host)
    env_file.change(root / ".env", {"WORKER_LAYOUT": layout, **changed})
    return written(root, host)


@pytest.mark.parametrize(
    ("name", "layout", "memory", "shm", "objects", "cpus"),
    [
        ("server with eight GPUs", "generated", 126 * GIB, 63 * GIB, 126 * GIB // 8, 24),
        ("two GPUs, as in the tutorial", "host", 118 * GIB, 59 * GIB, 118 * GIB // 8, 32),
        ("laptop", "host", 10 * GIB, 5 * GIB, 10 * GIB // 8, 8),
    ],
)
def test_other_layout_divides_host_among_its_workers(
    root: Path, name: str, layout: str, memory: int, shm: int, objects: int, cpus: int
) -> None:
    settings = laid_out(root, HOSTS[name], layout, WORKER_GPUS="1")
    assert (settings.worker_memory, settings.worker_shm, settings.worker_object_store) == (memory, shm, objects)
    assert f"\nWORKER_CPUS={cpus}\n" in (root / ".env").read_text()
    assert stack_env.write_env(root, HOSTS[name]) == []


def test_sizes_that_person_changed_are_kept(root: Path) -> None:
    settings = laid_out(root, HOSTS["server with eight GPUs"], "generated", WORKER_SHM="100g")
    assert (settings.worker_memory >> 30, settings.worker_shm >> 30) == (1014, 100)
    assert any(
        "1.01e+03 GiB for each of 8 workers" in line
        for line in sizing.misfits(settings, HOSTS["server with eight GPUs"])
    )


def test_more_memory_never_gives_notebook_less() -> None:
    limits = [
        max(
            int(choice.value[:-1]) * (2**10 if choice.value.endswith("g") else 1)
            for choice in sizing.choices(Host(gib * GIB, 8))
            if choice.setting == "NOTEBOOK_MEMORY"
        )
        for gib in range(4, 512)
    ]
    assert limits == sorted(limits)


@pytest.mark.parametrize(
    ("change", "host", "expected"),
    [
        ("WORKER_MEMORY=12g", HOSTS["runner in CI"], r"WORKER_MEMORY is 12 GiB, more than .* WORKER_MEMORY=3g"),
        ("WORKER_MEMORY=12g", HOSTS["24 GB machine"], r"12 GiB for each of 2 workers, more than .* WORKER_MEMORY=8g"),
        ("NOTEBOOK_MEMORY=30g", HOSTS["24 GB machine"], "NOTEBOOK_MEMORY is 30 GiB, more than the 16.4 GiB"),
        ("WORKER_SHM=64g", HOSTS["24 GB machine"], "WORKER_SHM is 64 GiB, more than .* set WORKER_SHM="),
        ("WORKER_OBJECT_STORE=20000000000", HOSTS["24 GB machine"], "Ray would keep objects on the disk"),
        ("WORKER_GPUS=4", HOSTS["workstation with one GPU"], "declare 4 GPUs .* but this host has 1"),
        ("ACCELERATOR=cpu", HOSTS["workstation with one GPU"], "this host has 1 GPUs, which no job can use"),
    ],
)
def test_setting_that_no_longer_fits_is_reported(root: Path, change: str, host: Host, expected: str) -> None:
    stack_env.write_env(root, host)
    setting, _, value = change.partition("=")
    env_file.change(root / ".env", {setting: value})
    found = list(sizing.misfits(StackSettings.load(root / ".env"), host))
    assert any(re.search(expected, sentence) for sentence in found), found
