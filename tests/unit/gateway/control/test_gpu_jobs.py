"""Use that a job makes of its GPUs: none, how much, and more memory than its part."""

from __future__ import annotations

import pytest

from mlplatform.gateway.control.gpu_jobs import are_idle, computing, excess, held_by
from mlplatform.gateway.upstream.utilisation import GpuUse

GIB = 1 << 30


def gpu(percent: int | None = 50, *, used: int = 0, of: dict[str, int] | None = None, **holders: float) -> GpuUse:
    return GpuUse("node", 0, "GPU", percent, used, 40 * GIB, holders or {"mine": 1.0}, of or {})


@pytest.mark.parametrize(
    ("percents", "idle"),
    [((0, 4), True), ((0, 5), False), ((0, None), False), ((), False)],
    ids=["none computes", "one computes", "one is not measured", "holds none"],
)
def test_job_is_idle_if_no_gpu_of_it_computes(percents: tuple[int | None, ...], idle: bool) -> None:
    assert are_idle([gpu(percent) for percent in percents]) is idle


def test_shared_gpu_computes_for_holders_by_their_parts() -> None:
    shared = gpu(80, mine=0.25, other=0.5, third=0.25)
    assert computing("mine", [shared, gpu(50)]) == pytest.approx(0.8 * 0.25 + 0.5)
    assert computing("mine", [shared, gpu(None)]) is None
    assert computing("mine", []) is None


def test_only_gpus_that_a_job_holds_are_its_own() -> None:
    mine, other = gpu(mine=0.5, other=0.5), gpu(other=1.0)
    assert held_by("mine", [mine, other]) == [mine]


@pytest.mark.parametrize(
    ("part", "gib", "too_much"),
    [(0.5, 20.3, False), (0.5, 20.5, True), (1.0, 40, False), (0.25, 10.5, True)],
    ids=["within the tolerance", "beyond its half", "a whole GPU", "beyond its quarter"],
)
def test_memory_beyond_the_part_of_a_gpu_is_named(part: float, gib: float, too_much: bool) -> None:
    found = excess("mine", [gpu(of={"mine": int(gib * GIB)}, mine=part, other=0.25)])
    expected = f"It uses {gib:.1f} GiB of GPU 0 on node, more than the {part * 40:.1f} GiB of the {part:g} GPUs that"
    assert (found or "").startswith(expected) is too_much
    assert (found is not None) is too_much


def test_memory_that_nobody_measures_is_not_too_much() -> None:
    assert excess("mine", [gpu(used=40 * GIB, mine=0.5, other=0.5)]) is None
