"""`ray.init` in processes that are not nodes, each started as people start one: with the variables of its shell."""

from __future__ import annotations

import os
import sys

import pytest
from embedded import completed

from mlplatform.compat import ray_connect

NOTEBOOK = {"RAY_ADDRESS": "http://gateway:8265", "RAY_JOB_SUBMIT_HOOK": "any.hook"}

TRY = """
import ray, ray.data
for attempt in (
    lambda: ray.init(),
    lambda: ray.init(address="auto", namespace="team"),
    lambda: ray.init("ray-head:6379"),
    lambda: ray.init("ray://10.0.0.9:10001"),
    lambda: ray.get(ray.put(1)),
    lambda: ray.data.range(3).take(),
):
    try:
        print("connected", attempt())
    except ConnectionError as error:
        print(error)
"""


def python(code: str, **variables: str) -> str:
    done = completed(sys.executable, "-c", code, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_notebook_names_the_way_to_the_cluster() -> None:
    lines = python(TRY, **NOTEBOOK).splitlines()
    assert len(lines) == 6
    assert all("with `ray job submit " in line for line in lines), lines
    assert "to ray-head:6379 from here" in lines[2]


def test_without_address_no_local_ray_starts_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_SUBMIT_HOOK", "any.hook")
    assert all(ray_connect.refusal(address) for address in (None, "auto", "10.0.0.9:6379"))
    assert not any(ray_connect.refusal(address) for address in ("local", "127.0.0.1:6379", "ray://localhost:10001"))


def test_shell_with_the_gateways_address_may_reach_other_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "https://ray.example.org")
    assert all(ray_connect.refusal(address) for address in (None, "auto", "http://127.0.0.1:8265"))
    assert not any(ray_connect.refusal(address) for address in ("local", "10.0.0.9:6379", "ray://10.0.0.9:10001"))


@pytest.mark.parametrize(
    ("variables", "loaded"),
    [
        (NOTEBOOK, True),
        ({"RAY_ADDRESS": "http://127.0.0.1:18265"}, True),
        ({"RAY_ADDRESS": "10.0.0.9:6379"}, False),
        ({}, False),
        ({**NOTEBOOK, "RAY_START_HOOK": "of.a.node"}, False),
    ],
)
def test_only_processes_outside_of_the_cluster_are_checked(variables: dict[str, str], loaded: bool) -> None:
    printed = python("import sys; print('mlplatform.compat.ray_connect' in sys.modules)", **variables)
    assert printed == f"{loaded}\n"
