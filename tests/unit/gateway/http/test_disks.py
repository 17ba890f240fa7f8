"""Full disks: new jobs are rejected with one sentence, and accepted again once there is room."""

import os
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from ray_head import BOUND_S, NO_TLS, TOKEN
from started_gateway import PROMETHEUS_PASSWORD, StartedGateway

from mlplatform.errors import UnreachableError
from mlplatform_gateway.http.auth import LOGIN_PAGE
from mlplatform_gateway.jobs.overview import JobOverview
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.monitoring.disks import Disk
from mlplatform_gateway.pages import overview
from mlplatform_gateway.settings import GatewaySettings

GB = 10**9
PACKAGE = "/api/packages/gcs/_ray_pkg_0123456789abcdef.zip"
SENTENCE = "New jobs are rejected: the disk of the platform has 1.5 GB free, less than DISK_RESERVE_GB=2."


@pytest.fixture
def full(started: StartedGateway, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A disk of 100 GB with 1.5 GB free, for a gateway that keeps 2 GB."""
    started.disk_reserve_gb = 2
    space = SimpleNamespace(f_bavail=3 * GB // 2, f_frsize=1, f_blocks=100 * GB)
    monkeypatch.setattr(os, "statvfs", lambda folder: space)
    return space


def submit(client: httpx.Client) -> httpx.Response:
    return client.post("/api/jobs/", json={"entrypoint": "true", "submission_id": "new"})


def test_jobs_are_rejected_until_disk_has_room(started: StartedGateway, full: SimpleNamespace) -> None:
    with started.running() as client:
        for rejected in (submit(client), client.put(PACKAGE, content=b"PK")):
            assert rejected.status_code == 507
            assert rejected.text.startswith(SENTENCE)
        assert client.get("/platform/health").is_success, "a full disk restarts the gateway"
        assert client.get("/api/jobs/mine").is_success
        full.f_bavail = 2 * GB
        assert submit(client).is_success


def test_front_page_reports_full_disk(
    started: StartedGateway, full: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "FRESH_SECONDS", 0)
    with started.running() as client, httpx.Client(base_url=client.base_url, timeout=BOUND_S, verify=NO_TLS) as browser:
        browser.post(LOGIN_PAGE, data={"token": TOKEN})
        assert browser.get("/platform/overview").json()["problems"][0].startswith(SENTENCE)
        full.f_bavail = 2 * GB
        assert "New jobs are rejected" not in browser.get("/platform/overview").text


def test_full_disk_is_named_as_reason_of_outage(
    started: StartedGateway, full: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ping(*_: object) -> None:
        raise UnreachableError("The gateway's database does not answer.")

    with started.running() as client, httpx.Client(base_url=client.base_url, timeout=BOUND_S, verify=NO_TLS) as browser:
        browser.post(LOGIN_PAGE, data={"token": TOKEN})
        monkeypatch.setattr(JobStore, "ping", ping)
        monkeypatch.setattr(JobOverview, "read", ping)
        monkeypatch.setattr(overview, "FRESH_SECONDS", 0)
        for f_bavail, named in ((12 * 10**6, True), (3 * GB // 2, False)):
            full.f_bavail = f_bavail
            answers = [client.get("/platform/health"), browser.get("/platform/overview")]
            assert {answer.status_code for answer in answers} == {503}
            with browser.stream("GET", "/platform/overview?follow=1") as stream:
                texts = [*(answer.text for answer in answers), next(stream.iter_lines())]
            for text in texts:
                assert text.count("The gateway's database does not answer.") == 1
                assert ("the disk of the platform is full (12 MB free)" in text) == named
        full.f_bavail = 12 * 10**6
        assert submit(client).status_code == 507
        assert "is full (12 MB free)" in submit(client).text


def test_space_of_disks_is_published(started: StartedGateway, full: SimpleNamespace) -> None:
    with started.running() as client:
        metrics = client.get("/platform/metrics", headers={"Authorization": f"Bearer {PROMETHEUS_PASSWORD}"}).text
    assert 'mlplatform_disk_free_bytes{disk="platform"} 1.5e+09' in metrics
    assert 'mlplatform_disk_size_bytes{disk="platform"} 1e+11' in metrics
    assert "mlplatform_disk_reserve_bytes 2e+09" in metrics


def test_object_store_is_full_with_one_percent_left() -> None:
    free = {"object store": (9 * GB, 11 * GB), "databases": (31 * 10**6, 9 * GB)}
    assert {name: [Disk(name, size, 1000 * GB).is_full for size in sizes] for name, sizes in free.items()} == {
        name: [True, False] for name in free
    }


def test_each_folder_of_disks_is_a_disk(tmp_path: Path) -> None:
    for name in ("object-store", "databases"):
        (tmp_path / name).mkdir()
    found = GatewaySettings.load(disks=tmp_path).disk_folders()
    assert found == {"databases": tmp_path / "databases", "object store": tmp_path / "object-store"}
    assert GatewaySettings.load(files="s3://jobs").disk_folders() == {}
