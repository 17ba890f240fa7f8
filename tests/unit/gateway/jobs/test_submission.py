"""Amounts of resources in submissions."""

import json
from typing import Any

import pytest

from mlplatform.errors import JobError
from mlplatform_gateway.jobs.submission import Submission

TINY = 1e-320
"""A number by which no free amount can be divided."""


@pytest.mark.parametrize(
    "fields",
    [
        {"entrypoint_num_cpus": TINY},
        {"entrypoint_num_gpus": 0.00009},
        {"entrypoint_resources": {"fast": TINY}},
        {"metadata": {"workers": "1", "worker_cpus": str(TINY), "wait_for_capacity": "true"}},
        {"metadata": {"workers": "1", "worker_gpus": str(TINY)}},
    ],
)
def test_amount_that_ray_does_not_count_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(JobError, match=r"Ray counts in steps of 0\.0001; use 0 or at least that"):
        Submission.parse(json.dumps({"entrypoint": "true", **fields}).encode())


def test_least_amount_and_none_are_accepted() -> None:
    fields = {"entrypoint_num_gpus": 0.0001, "entrypoint_num_cpus": 0.0, "metadata": {"worker_cpus": "0"}}
    job = Submission.parse(json.dumps({"entrypoint": "true", **fields}).encode())
    assert (job.entrypoint_num_gpus, job.options.worker_cpus) == (0.0001, 0)
