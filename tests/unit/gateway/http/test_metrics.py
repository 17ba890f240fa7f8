"""Metrics of the gateway, for Prometheus only."""

import asyncio
import os
from pathlib import Path

import httpx
import pytest
from ray_head import BOUND_S, TOKEN
from started_gateway import PROMETHEUS_PASSWORD, StartedGateway
from stored import ray
from waiting import wait_for

from mlplatform.errors import SettingsError
from mlplatform_gateway.jobs.states import Outcome
from mlplatform_warm import notes


def scrape(client: httpx.Client, token: str | None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.get(f"{client.base_url}/platform/metrics", headers=headers)


def test_starts_in_logs_of_drivers_are_published(started: StartedGateway) -> None:
    (attempt,) = asyncio.run(started.store.get("mine")).attempts
    warm, cold = f"{notes.WARM}\n".encode(), f"{notes.COLD}because\n".encode()
    body = b"one line\n" + warm * 2 + cold + b"said: " + warm
    worker = f"worker-{'ab' * 28}-01000000-7.out"
    asyncio.run(started.store.seen("mine", 1, ray(), "n"))
    with started.running() as client:
        for file, content in ((f"job-driver-{attempt.ray_submission_id}.log", body), (worker, warm)):
            query = {"session": "session_1", "offset": 0, "inode": 7}
            for _ in range(2):
                sent = client.put(f"/platform/logs/n/{file}", params=query, content=content)
            assert sent.json()["expected"] == len(content)
        answer = scrape(client, PROMETHEUS_PASSWORD)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples = [text for text in answer.text.splitlines() if text.startswith("mlplatform_starts_total")]
    assert sorted(samples) == ['mlplatform_starts_total{warm="false"} 1.0', 'mlplatform_starts_total{warm="true"} 2.0']
    assert "because" not in answer.text


def test_jobs_attempts_and_demand_are_published(started: StartedGateway) -> None:
    started.add("lost", attempts=2)
    started.add(
        "waits", attempts=0, entrypoint_num_gpus=1, metadata={"user": "ada", "workers": "2", "worker_gpus": "0.5"}
    )
    started.end(Outcome.FAILED, "mine")
    ended = "mlplatform_jobs_with_open_runs 0.0"  # as soon as the gateway has looked at the failed job
    with started.running() as client:
        wait_for(lambda: ended in scrape(client, PROMETHEUS_PASSWORD).text, "the end of the job's run", BOUND_S)
        samples = scrape(client, PROMETHEUS_PASSWORD).text.splitlines()
    for expected in (
        'mlplatform_jobs{state="FAILED",user=""} 1.0',
        'mlplatform_jobs{state="WAITING",user="ada"} 1.0',
        'mlplatform_ended_attempts{outcome="LOST"} 1.0',
        'mlplatform_ended_attempts{outcome="FAILED"} 1.0',
        'mlplatform_ended_attempts{outcome="SUCCEEDED"} 0.0',
        'mlplatform_waiting_resources{resource="GPU"} 2.0',
        "mlplatform_log_bytes_total 0.0",
    ):
        assert expected in samples, samples


def test_running_attempt_is_published_until_it_ends(started: StartedGateway) -> None:
    started.add("again", attempts=2, metadata={"user": "ada"})
    asyncio.run(started.store.seen("again", 2, ray(), "ray-worker-0"))
    started.add("connects")  # its driver has not connected to Ray yet
    asyncio.run(started.store.seen("connects", 1, ray(driver=None), "ray-worker-1"))

    def running(client: httpx.Client) -> list[str]:
        samples = scrape(client, PROMETHEUS_PASSWORD).text.splitlines()
        return [sample for sample in samples if sample.startswith("mlplatform_running_attempts{")]

    labels = 'attempt="2",job_id="again",node="ray-worker-0",ray_job_id="01000000",user="ada"'
    with started.running() as client:
        assert running(client) == [f"mlplatform_running_attempts{{{labels}}} 1.0"]
        started.end(job_id="again", number=2)
        assert running(client) == []


def test_reserved_and_lost_time_is_published(started: StartedGateway) -> None:
    started.add("lost", attempts=2, entrypoint_num_gpus=1, metadata={"user": "ada"})
    started.end(Outcome.FAILED, "lost", number=2)

    def counted(client: httpx.Client) -> dict[str, float]:
        samples = [text.rsplit(" ", 1) for text in scrape(client, PROMETHEUS_PASSWORD).text.splitlines()]
        return {name: float(value) for name, value in samples if "_seconds_total{" in name and "ada" in name}

    with started.running() as client:
        first = counted(client)
        again = counted(client)
    reserved, lost = (f'mlplatform_{part}_gpu_seconds_total{{person="ada",team=""}}' for part in ("reserved", "lost"))
    assert 0 < first[lost] < first[reserved] < BOUND_S
    assert first == again
    assert {name.partition("{")[0] for name in first} == {
        f"mlplatform_{part}_{resource}_seconds_total" for part in ("reserved", "lost") for resource in ("gpu", "cpu")
    }


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("wrong", 403), (TOKEN, 403)], ids=["none", "wrong", "ray"])
def test_metrics_require_password_of_prometheus(started: StartedGateway, token: str | None, status: int) -> None:
    with started.running() as client:
        answer = scrape(client, token)
    assert answer.status_code == status
    assert "mlplatform_starts" not in answer.text


def test_password_of_prometheus_opens_nothing_else(started: StartedGateway) -> None:
    with started.running() as client:
        headers = {"Authorization": f"Bearer {PROMETHEUS_PASSWORD}"}
        for path in ("/api/jobs/", "/platform/jobs/mine", "/platform/metrics/", "/platform/metrics/x"):
            assert httpx.get(f"{client.base_url}{path}", headers=headers).status_code == 403, path


def test_gateway_without_prometheus_publishes_no_metrics(tmp_path: Path, closed_port: int) -> None:
    gateway = StartedGateway(tmp_path, f"http://127.0.0.1:{closed_port}", prometheus=False)
    with gateway.running() as client:
        assert scrape(client, None).status_code == 401
        assert scrape(client, PROMETHEUS_PASSWORD).status_code == 403
        assert "mlplatform_starts" not in scrape(client, TOKEN).text


def test_missing_password_of_prometheus_is_named(started: StartedGateway) -> None:
    (started.folder / "prometheus_password").unlink()
    with pytest.raises(SettingsError, match="MLPLATFORM_PROMETHEUS_PASSWORD_PATH"), started.running():
        pass


def test_times_of_backups_are_published(started: StartedGateway, tmp_path: Path) -> None:
    def published() -> list[str]:
        with started.running() as client:
            lines = scrape(client, PROMETHEUS_PASSWORD).text.splitlines()
        return [line for line in lines if "_backup_" in line and "#" not in line]

    names = ("success_timestamp", "timer_timestamp", "interval")
    assert published() == [f"mlplatform_backup_{name}_seconds 0.0" for name in names]
    started.backups, started.backup_hours = tmp_path, 2
    (tmp_path / "succeeded").touch()
    os.utime(tmp_path / "succeeded", (5000, 5000))
    found = published()
    assert "mlplatform_backup_success_timestamp_seconds 5000.0" in found
    assert "mlplatform_backup_interval_seconds 7200.0" in found
