"""Ray's dashboard in a browser, through the gateway: users log in and see jobs but cannot change them."""

from __future__ import annotations

import json
import re

from browser import BOUND_S, Page
from gpu_jobs import holding_gpu
from host import Stack, Trained, wait_for

from mlplatform.client.jobs import Jobs

STATUS_OF_JOB = 4
"""Column of the table of jobs (Ray 2.60)."""


def cell(page: Page, name: str, column: int) -> str | None:
    """Text in a column of the table's row that has a cell with a name; None without such a row."""
    named = f"[...row.cells].some(cell => cell.innerText.trim() === {json.dumps(name)})"
    row = f"[...document.querySelectorAll('tbody tr')].find(row => {named})"
    text: str | None = page.evaluate(f"{row}?.cells[{column}].innerText.trim()")
    return text


def logged_in(stack: Stack, page: Page, path: str) -> None:
    """Open a page of the dashboard after a login."""
    address = f"http://127.0.0.1:{stack.settings.ray_port}"
    page.resize(1280, 900)
    page.go(f"{address}/#/{path}")
    wait_for(lambda: page.evaluate("location.host") and "oken" in page.text(), "the prompt for the token", BOUND_S)
    assert page.status("/api/authenticate", "POST", stack.secret("ray_token")) == 200
    page.evaluate("location.reload()")


def test_dashboard_shows_resources_and_waiting_jobs(stack: Stack, jobs: Jobs, page: Page) -> None:
    logged_in(stack, page, "cluster")
    for node in ("ray-head", "ray-worker-0", "ray-worker-1"):
        page.wait_for_text(node, f"{node} among the nodes")
    page.picture("ray-cluster")
    with holding_gpu(jobs, 3) as started:
        address = f"http://127.0.0.1:{stack.settings.ray_port}"
        page.go(f"{address}/#/jobs")
        for job_id in started:
            page.wait_for_text(job_id, f"{job_id} among the jobs")

        def statuses() -> list[str | None]:
            return [cell(page, job_id, STATUS_OF_JOB) for job_id in started]

        wait_for(lambda: statuses() == ["RUNNING", "RUNNING", "PENDING"], "two jobs that run, one that waits", BOUND_S)
        # Ray's Overview cannot show what waits: the gateway holds the job until it has room.
        page.wait_for_text("The job waits for 1 GPU", "the reason why the third job waits")
        assert statuses()[2] == "PENDING"
        page.picture("ray-jobs")
        page.go(f"{address}/#/overview")
        page.wait_for_text("2.0/2.0 GPU", "the GPUs that the jobs hold")
        page.picture("ray-overview")
    page.wait_for_text("0.0/2.0 GPU", "GPUs that are free again")


def test_metrics_page_finds_prometheus_and_grafana(stack: Stack, page: Page) -> None:
    with stack.ray as gateway:
        for path in ("/api/grafana_health", "/api/prometheus_health"):
            wait_for(lambda path=path: gateway.get(path).raise_for_status().json()["result"], path)
    logged_in(stack, page, "metrics")
    panels = wait_for(lambda: page.evaluate("document.querySelector('iframe')?.src"), "Grafana's panels", BOUND_S)
    assert panels.startswith(f"http://ray.localhost:{stack.settings.grafana_port}/d/"), panels
    # What the page shows instead if one of the two health checks fails.
    assert "either Prometheus or Grafana server is not detected" not in page.text()
    page.picture("ray-metrics")


def test_dashboard_login_shows_jobs_read_only(stack: Stack, trained: Trained, page: Page) -> None:
    address = f"http://127.0.0.1:{stack.settings.ray_port}"
    page.go(f"{address}/#/jobs")
    wait_for(lambda: "oken" in page.text(), "the dashboard's prompt for the token", BOUND_S)
    assert page.status("/api/jobs/") == 401
    assert page.status("/api/authenticate", "POST", "wrong") == 403
    # The dashboard's own dialog sends the token in the same way; scripts cannot read the response's cookie.
    assert page.status("/api/authenticate", "POST", stack.secret("ray_token")) == 200
    assert page.status("/api/jobs/") == 200
    assert page.evaluate("document.cookie") == ""

    known = [job["submission_id"] for job in stack.ray.get("/api/jobs/").json() if job["submission_id"]]
    assert trained.id in known
    page.evaluate("location.reload()")
    wait_for(lambda: any(name in page.text() for name in known), "the list of jobs, or its first page", BOUND_S)
    assert not re.search(r"--\d+-[0-9a-f]{6}", page.text()), "an attempt is listed under its Ray submission id"
    page.go(f"{address}/#/jobs/{trained.id}")
    wait_for(lambda: "SUCCEEDED" in page.text(), "the page of the job", BOUND_S)
    wait_for(lambda: f"Running entrypoint for job {trained.id}" in page.text(), "the job's log on its page", BOUND_S)

    assert page.status(f"/api/jobs/{trained.id}", "DELETE") == 405
    assert stack.ray.get(f"/api/jobs/{trained.id}").status_code == 200
