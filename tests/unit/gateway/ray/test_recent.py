"""Means of the load of jobs per minute, over the last hour."""

import pytest

from mlplatform_gateway.ray.recent import MINUTES, Load, RecentLoads
from mlplatform_gateway.ray.utilisation import GpuUse, JobUse, Utilisation, loads_in

NOON = 1793534400.0


def test_minute_has_mean_of_its_measurements() -> None:
    recent = RecentLoads()
    for second, gpu in ((0, 90.0), (20, 60.0), (40, None), (59, 30.0)):
        recent.add({"job": Load(gpu, cpus=2.0)}, NOON + second)
    curve = recent.curve("job", NOON + 60)
    assert curve["cpus"] == [2.0]
    assert curve["gpu"] == [60.0]
    assert curve["memory"] == [None]


def test_curve_ends_now_and_has_gaps() -> None:
    recent = RecentLoads()
    for minute in (0, 2):
        recent.add({"job": Load(float(minute))}, NOON + 60 * minute)
    assert recent.curve("job", NOON + 300)["gpu"] == [0.0, None, 2.0, None, None]


def test_curve_forgets_what_is_older_than_an_hour() -> None:
    recent = RecentLoads()
    recent.add({"ended": Load(1.0)}, NOON)
    for minute in range(90):
        recent.add({"job": Load(float(minute))}, NOON + 60 * minute)
    assert recent.curve("ended", NOON + 60 * 89) == {}
    assert recent.curve("job", NOON + 60 * 90)["gpu"] == [float(minute) for minute in range(30, 90)]
    assert len(recent.curve("job", NOON + 60 * 100)["gpu"]) == MINUTES


def test_load_of_job_counts_its_parts_of_gpus() -> None:
    whole = GpuUse("node", 0, "H100", 90, 600, 1000, {"job": 1.0}, {"job": 600})
    shared = GpuUse("node", 1, "H100", 30, 500, 1000, {"job": 0.5, "other": 0.5}, {"job": 100, "other": 400})
    silent = GpuUse("node", 2, holders={"plain": 1.0})
    loads = loads_in(Utilisation((), (whole, shared, silent), (JobUse("job", 1.5, 7),)))
    assert loads == {
        "job": Load(pytest.approx(70.0), 700, 1.5, 7),
        "other": Load(30.0, 400),
        "plain": Load(),
    }
