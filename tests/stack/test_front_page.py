"""The front page in a browser: login, nodes and GPUs, jobs as they start, wait and end, their pages and buttons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import BOUND_S, Page
from gpu_jobs import holding_gpu
from host import Stack, Trained, train, wait_for

from mlplatform.client.jobs import Jobs

PHONE, DESK = (390, 844), (1280, 900)


@pytest.fixture
def front_page(stack: Stack, page: Page) -> Page:
    """The front page, after a login with the form."""
    page.resize(*DESK)
    log_in(page, stack)
    page.wait_for_text("Dev environments", "the front page")
    return page


def log_in(page: Page, stack: Stack, part: str = "") -> None:
    page.go(f"http://127.0.0.1:{stack.settings.ray_port}/platform/{part}")
    page.wait_for_text("Log in", "the login page")
    page.evaluate(f"document.querySelector('input').value = {stack.secret('ray_token')!r}")
    page.click("button")


def test_front_page_shows_nodes_and_healthy_services(stack: Stack, front_page: Page) -> None:
    for worker in ("ray-worker-0", "ray-worker-1"):
        front_page.wait_for_text(worker, "the nodes")
    assert "ray-head" not in front_page.text()
    tools = front_page.evaluate("[...document.querySelectorAll('#tools a')].map(tool => tool.innerText)")
    assert tools == ["Ray dashboard", "JupyterLab", "MLflow", *["MinIO"] * stack.own_store, "Grafana", "Prometheus"]
    wait_for(lambda: not front_page.evaluate("document.querySelectorAll('#tools .down').length"), "healthy services")
    content = front_page.evaluate("document.documentElement.outerHTML")
    assert not any(stack.secret(name) in content for name in ("ray_token", "notebook_token", "grafana_password"))


def test_jobs_appear_wait_and_end_on_open_page(jobs: Jobs, front_page: Page) -> None:
    with holding_gpu(jobs, 3) as (first, second, third):
        front_page.wait_for_text(f"used by {first}", "the first job's GPU")
        front_page.wait_for_text(f"used by {second}", "the second job's GPU")
        front_page.wait_for_text("The job waits for 1 GPU", f"the reason why {third} waits")
        front_page.picture("front-page")
        front_page.resize(*PHONE)
        assert front_page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        front_page.picture("front-page-phone")
        front_page.resize(*DESK)
        stop = f"document.querySelector('[data-job=\"{third}\"] .buttons button:last-child')"
        front_page.press(stop)
        front_page.wait_for_text("Stop: sure?", "the question")
        front_page.press(stop)
        ended = f"!!document.querySelector('#ended [data-job=\"{third}\"]')"
        wait_for(lambda: front_page.evaluate(ended), "the job that its button has stopped", BOUND_S)
    wait_for(lambda: front_page.text().count("stopped") >= 3, "the jobs among the ended ones", BOUND_S)


def test_copied_cookie_changes_nothing(jobs: Jobs, front_page: Page) -> None:
    with holding_gpu(jobs, 1) as (job,):
        # The page's scripts have the cookie, and here not the key.
        for path in (f"/api/jobs/{job}/stop", f"/platform/jobs/{job}/resume", "/api/jobs/", "/platform/people"):
            assert front_page.status(path, "POST") == 405
        wait_for(lambda: jobs.get(job).status == "RUNNING", "the job that was not stopped", BOUND_S)


@pytest.fixture
def latest(stack: Stack, trained: Trained) -> Iterator[Trained]:
    """The main job again, because the page lists the latest jobs only; the first one's model stays the champion."""
    champion = {"name": "digits", "alias": "champion"}
    answer = stack.mlflow.get("/registered-models/alias", params=champion).json()
    yield train(stack)
    version = {**champion, "version": answer["model_version"]["version"]}
    stack.mlflow.post("/registered-models/alias", json=version).raise_for_status()


def test_page_of_job_leads_to_log_run_and_model(stack: Stack, latest: Trained, front_page: Page) -> None:
    front_page.evaluate(f"location.hash = '#/jobs/{latest.id}'")
    front_page.wait_for_text("Model digits", "the results of the job")
    links = front_page.evaluate("[...document.querySelectorAll('#job a')].map(link => link.getAttribute('href'))")
    log = f"/platform/jobs/{latest.id}/log"
    # Not followed in the browser, which would ask for the account at MLflow.
    mlflow = f"http://mlflow.localhost:{stack.settings.mlflow_port}/#"
    (found,) = stack.runs_of(latest.id)
    run = f"{mlflow}/experiments/{found['info']['experiment_id']}/runs/{found['info']['run_id']}"
    assert {log, run, f"/#/jobs/{latest.id}"} <= set(links)
    assert any(link.startswith(f"{mlflow}/models/digits/versions/") for link in links)
    text = front_page.evaluate(f"fetch('{log}').then(answer => answer.text())")
    assert f"Running entrypoint for job {latest.id}" in text


def test_page_of_job_shows_curves_results_and_log(latest: Trained, front_page: Page) -> None:
    front_page.evaluate(f"location.hash = '#/jobs/{latest.id}'")
    for text in ("succeeded", "train_loss", "Model digits", "checkpoint_", "mlplatform submit .", "Attempts 1"):
        front_page.wait_for_text(text, f"{text} on the page of the job")
    front_page.type("Running entrypoint", into=".log input")
    front_page.wait_for_text(f"Running entrypoint for job {latest.id}", "the line of the log")
    front_page.picture("front-page-job")


def test_odd_ids_and_ends_of_lines_are_shown(jobs: Jobs, front_page: Page, tmp_path: Path) -> None:
    job = jobs.submit("printf 'first\\r\\n10 %%\\r20 %%\\r\\nlast\\n'; exec sleep 1000", tmp_path, job_id="constructor")
    try:
        front_page.wait_for_text("sleep 1000", "the job among those that run")
        front_page.evaluate(f"location.hash = '#/jobs/{job}'")
        front_page.wait_for_text("first\n20 %\nlast", "the log")
    finally:
        jobs.stop(job)
        jobs.wait(job, timeout_s=60)


def test_logged_out_browser_sees_nothing_and_returns(stack: Stack, front_page: Page) -> None:
    front_page.click("header button")
    front_page.wait_for_text("Log in", "the login page")
    assert front_page.status("/platform/") == 401
    assert front_page.status("/api/jobs/") == 401
    # The form of the page before would look like the next one's.
    front_page.go("about:blank")
    wait_for(lambda: not front_page.text(), "the empty page", BOUND_S)
    log_in(front_page, stack, "#/jobs/nobodys")
    front_page.wait_for_text("Job nobodys does not exist", "the page to which the address led")
