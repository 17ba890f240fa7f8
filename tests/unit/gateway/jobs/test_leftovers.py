"""Which actors are ended: the detached ones of ended jobs, but for those that Ray's libraries share between jobs."""

from __future__ import annotations

from typing import Any

import pytest

from mlplatform.compat import ray_actors
from mlplatform_gateway.ray.leftovers import leftover


def actor(**changes: Any) -> dict[str, Any]:
    return {"actor_id": "a1", "class_name": "Holder", "job_id": "02000000", "is_detached": True, **changes}


def jobs(status: str, job_id: str | None = "02000000") -> dict[str, dict[str, Any]]:
    return {"raysubmit_1": {"status": status, "job_id": job_id}}


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED", "STOPPED"])
def test_detached_actor_of_ended_job_is_leftover(status: str) -> None:
    assert leftover([actor()], jobs(status)) == [actor()]


@pytest.mark.parametrize(
    ("row", "listed"),
    [
        (actor(), jobs("RUNNING")),
        (actor(), jobs("PENDING", None)),
        (actor(job_id="03000000"), jobs("SUCCEEDED")),
        (actor(job_id=None), jobs("FAILED", None)),
        (actor(is_detached=False), jobs("SUCCEEDED")),
        (actor(class_name="_StatsActor"), jobs("SUCCEEDED")),
        (actor(class_name="PlacementGroupCleaner"), jobs("FAILED")),
    ],
)
def test_other_actors_are_kept(row: dict[str, Any], listed: dict[str, dict[str, Any]]) -> None:
    assert leftover([row], listed) == []


def test_program_that_ends_actors_is_on_every_node() -> None:
    assert ray_actors.__name__.split(".")[0] == "mlplatform", "the Ray image has neither the gateway nor the stack"
