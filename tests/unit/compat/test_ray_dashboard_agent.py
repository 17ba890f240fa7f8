"""Processes that count for a job beside the workers of Ray."""

from __future__ import annotations

from typing import Any

from mlplatform.compat.ray_dashboard_agent import owners

SUPERVISOR, WORKER, SHELL, PROGRAM, TEMPLATE, LOADER, OTHER = range(10, 17)

JOB = {"MLPLATFORM_JOB_ID": "train", "MLPLATFORM_ATTEMPT": "1"}


def process(ppid: int, **environ: str) -> dict[str, Any]:
    return {"ppid": ppid, "environ": environ or None}


def test_processes_count_for_starter_or_entry_point() -> None:
    known = {
        SUPERVISOR: {"pid": SUPERVISOR, "cmdline": ["ray::JobSupervisor"]},
        WORKER: {"pid": WORKER, "cmdline": ["ray::RayTrainWorker"]},
    }
    found = {
        SUPERVISOR: process(TEMPLATE),
        WORKER: process(TEMPLATE),
        TEMPLATE: process(1),
        SHELL: process(SUPERVISOR, **JOB),
        PROGRAM: process(TEMPLATE, **JOB),
        LOADER: process(WORKER),
        OTHER: process(TEMPLATE, **{**JOB, "MLPLATFORM_ATTEMPT": "2"}),
    }
    owned = {pid: worker["pid"] for pid, worker in owners(known, found).items()}
    here = {SUPERVISOR: SUPERVISOR, SHELL: SUPERVISOR, PROGRAM: SUPERVISOR}
    assert owned == {**here, WORKER: WORKER, LOADER: WORKER}
