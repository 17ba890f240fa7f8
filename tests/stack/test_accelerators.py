"""Every accelerator and layout gives a valid stack, and one torch image serves both cpu and cuda."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from compose_files import generate
from host import CHECKOUT, Stack, train, wait_for

from mlplatform_stack.services import stores

LAYOUTS = [(accelerator, layout) for accelerator in ("cpu", "cuda", "rocm") for layout in ("host", "gpu")]


@pytest.mark.parametrize(("accelerator", "layout"), LAYOUTS)
def test_compose_accepts_accelerator_and_layout(checkout: Stack, accelerator: str, layout: str) -> None:
    with _generated(checkout, ACCELERATOR=accelerator, WORKER_LAYOUT=layout, RENDER_GID="109"):
        config = json.loads(checkout.compose("config", "--format", "json").stdout)
    workers = sorted(name for name in config["services"] if name.startswith("ray-worker-"))
    assert workers == (["ray-worker-0"] if layout == "host" else ["ray-worker-0", "ray-worker-1"])
    for worker in workers:
        service = config["services"][worker]
        if accelerator == "cuda":
            device = service["deploy"]["resources"]["reservations"]["devices"][0]
            assert device["driver"] == "nvidia"
            assert device.get("count") == -1 if layout == "host" else device["device_ids"] == [worker[-1]]
        if accelerator == "rocm":
            card = "/dev/dri" if layout == "host" else f"/dev/dri/renderD{128 + int(worker[-1])}"
            assert {device["source"] for device in service["devices"]} == {"/dev/kfd", card}
    named = {"prometheus", "grafana", "alertmanager", "mlflow", "notebook", *stores(checkout.settings)}
    assert named <= set(config["services"])


@pytest.mark.nightly
def test_main_job_runs_under_cuda_files_without_devices(stack: Stack) -> None:
    assert stack.ray.get("/api/version").status_code == 200
    override = ("--file", str(CHECKOUT / "tests/stack/no-devices.yaml"))
    arguments = ("up", "--detach", "--no-build", "--wait", "--wait-timeout", "200")
    with _generated(stack, ACCELERATOR="cuda"):
        stack.compose(*override, *arguments, "ray-worker-0", "ray-worker-1")
    wait_for(lambda: len(stack.alive_nodes()) == 3, "the workers of the cuda files")
    assert "Test accuracy: 0.9" in train(stack).log


@contextmanager
def _generated(stack: Stack, **values: str) -> Iterator[None]:
    """Other settings with the files that `make env` writes for them, until the block ends."""
    try:
        with stack.changed(**values):
            generate(stack.root)
            yield
    finally:
        generate(stack.root)
