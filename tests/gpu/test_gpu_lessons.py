"""Lessons on this machine's GPUs, on an embedded platform: devices, processes, system metrics, data loaders."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from gpu_host import Run, host, needs, torch_here

if TYPE_CHECKING:
    from lesson import Left
    from mlflow.entities import Run as MlflowRun

pytestmark = needs(1)

Record = Callable[[str, object], None]

UTILIZATION = "system/gpu_{}_utilization_percentage"
MEMORY = "system/gpu_{}_memory_usage_percentage"


def mean(left: Left, metric: str, run: MlflowRun | None = None) -> float:
    """Mean of a metric's points; fails if there are none."""
    points = left.points(metric, run)
    assert points, f"no {metric}"
    return fmean(value for _, value in points)


def test_torch_computes_on_every_gpu() -> None:
    found = torch_here()
    fix = "for AMD, install a ROCm build of torch, and pyrsmi, into .venv"
    assert len(found.names) == host().gpus, f"torch {found.build} sees {found.names} of {host().gpus} GPUs; {fix}"
    assert found.sums == [3.0] * host().gpus


@pytest.mark.parametrize("use_gpu", [True, False])
def test_one_switch_selects_gpu_or_cpu(use_gpu: bool, run_lesson: Run) -> None:
    left = run_lesson("digits.py", "--epochs=2", "--workers=1", *(["--use-gpu"] if use_gpu else []))
    # Lightning prints it in the worker.
    assert f"used: {use_gpu}" in left.log, left.log[-4000:]
    assert "Test accuracy: " in left.log


def test_run_has_gpu_metrics_over_time(run_lesson: Run, record_property: Record) -> None:
    left = run_lesson("food11/tracked.py", "--epochs=4", "--size=224", gpus=1)
    for number in range(host().gpus):
        for metric in (UTILIZATION.format(number), MEMORY.format(number)):
            values = [value for _, value in left.points(metric)]
            assert len(values) >= 2, f"no line over time of {metric}: {values}"
            record_property(f"{metric}, lowest to highest", f"{min(values):g} to {max(values):g} %")
    for metric in ("system/cpu_utilization_percentage", "system/system_memory_usage_percentage"):
        assert left.points(metric), metric


@pytest.mark.timeout(900)
def test_loader_processes_keep_gpu_busier(run_lesson: Run, record_property: Record) -> None:
    arguments = ("--num-workers=16", "--photos=2048", "--delay=0.02", "--size=96")
    left = run_lesson("food11/slow_loader.py", *arguments, gpus=1)
    assert [run.data.params["num_workers"] for run in left.children] == ["0", "16"]
    seconds, busy = [], []
    for run in left.children:
        seconds.append(mean(left, "epoch_time", run))
        # The job's GPU is the busiest, whichever it is.
        busy.append(max(mean(left, UTILIZATION.format(number), run) for number in range(host().gpus)))
        loaders = run.data.params["num_workers"]
        record_property(f"{loaders} loader processes", f"{seconds[-1]:.1f} s per epoch, GPU {busy[-1]:.0f} % busy")
    assert seconds[1] < seconds[0] / 2
    assert busy[1] > busy[0]


@needs(2)
def test_lightning_auto_uses_every_gpu_without_ray(run_lesson: Run, record_property: Record) -> None:
    left = run_lesson("food11/lightning_food.py", "--size=32", "--epochs=1", gpus=host().gpus)
    assert f"after 1 epochs on {host().gpus} processes" in left.log, left.log[-4000:]
    assert "used: True" in left.log
    record_property("processes of devices='auto'", host().gpus)


@needs(2)
def test_two_processes_are_one_run_with_both_gpus(run_lesson: Run, record_property: Record) -> None:
    from food11_ray_lessons import QUICK, SHORT, ranks_are_one_run

    left = run_lesson(
        *("food11/lightning_food.py", *SHORT, "--devices=2", "--autolog"), gpus=2, check=ranks_are_one_run, **QUICK
    )
    assert "used: True" in left.log, "both processes used the CPU"
    for number in range(2):
        memory = mean(left, MEMORY.format(number))
        assert memory > 0, f"nothing was in the memory of GPU {number}"
        utilization = mean(left, UTILIZATION.format(number))
        record_property(f"GPU {number} in the run", f"{utilization:.0f} % busy, {memory:.1f} % of its memory")


@needs(2)
def test_two_gpu_workers_train_one_model(run_lesson: Run) -> None:
    from food11_ray_lessons import SHORT, two_workers

    left = run_lesson("food11/ray_food.py", *SHORT, "--workers=2", "--gpus-per-worker=1", check=two_workers)
    assert [given.get("GPU") for given in left.printed("Resources")] == [1, 1]
    assert "used: True" in left.log, "the workers trained on CPUs"


@needs(2)
def test_native_tracker_calls_work_on_two_gpu_workers(run_lesson: Run) -> None:
    from tracker_lessons import mlflow_files

    file_store = {"MLFLOW_ALLOW_FILE_STORE": "true"}
    run_lesson("trackers/mlflow_elsewhere.py", "--files", "--use-gpu", check=mlflow_files, env=file_store)
