"""Ray's dashboard in a browser, through the gateway: users log in and see jobs but cannot change them."""

from __future__ import annotations

import re

from browser import BOUND_S, Page
from host import Stack, Trained, wait_for


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
