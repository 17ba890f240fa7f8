"""Disks of the object store and the databases: their space is known, and new jobs are rejected for lack of it."""

from __future__ import annotations

import secrets

import httpx
import pytest
from host import Stack, run, wait_for


def test_gateway_sees_space_of_both_disks_but_no_file(stack: Stack) -> None:
    with stack.ray as gateway:
        found = gateway.get("/platform/disks").raise_for_status().json()
    assert {disk["name"] for disk in found["disks"]} == {"databases", "object store"}
    assert all(0 < disk["free"] < disk["size"] for disk in found["disks"])
    for folder in ("databases", "object-store"):
        listed = stack.execute("gateway", "ls", f"/disks/{folder}", check=False)
        assert "Permission denied" in listed.stderr, f"the gateway can read the files of {folder}"


@pytest.mark.soak
def test_jobs_are_rejected_for_lack_of_space_and_accepted_again(stack: Stack) -> None:
    def submit() -> httpx.Response:
        with stack.ray as gateway:
            body = {"entrypoint": "true", "submission_id": f"full-{secrets.token_hex(4)}"}
            return gateway.post("/api/jobs/", json=body)

    before = (stack.root / ".env").read_text()
    try:
        stack.set_env(DISK_RESERVE_GB="1000000")
        stack.up()
        rejected = submit()
        assert rejected.status_code == 507
        assert "New jobs are rejected: the disk of the " in rejected.text
        doctor = run(str(stack.root / ".venv/bin/mlplatform"), "doctor", check=False, cwd=stack.root)
        assert "New jobs are rejected" in doctor.stdout + doctor.stderr
    finally:
        (stack.root / ".env").write_text(before)
        stack.up()
    wait_for(lambda: submit().is_success, "a job to be accepted")
