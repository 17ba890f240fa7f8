"""The front page: login, what it shows of jobs, nodes and services, its updates, and its links to MLflow."""

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import Serve
from listing_head import RECORDED, ListingHead
from peopled import as_person, populate, submit
from ray_head import BOUND_S, NO_TLS, TOKEN
from sqlalchemy import update
from sqlalchemy.orm import Session
from started_gateway import StartedGateway
from waiting import wait_for

from mlplatform.api.overview import Share
from mlplatform.dev import environment
from mlplatform_gateway.http.auth import COOKIE, FRONT_PAGE, LOGIN_PAGE, LOGOUT
from mlplatform_gateway.jobs.decisions import Decisions
from mlplatform_gateway.jobs.overview import SHOWN
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import Outcome
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.pages import overview as pages_overview
from mlplatform_gateway.pages.overview import shares_of
from mlplatform_gateway.queue.planner.queue import Preempt
from mlplatform_gateway.ray.listings import Holding

WHY = "Team <vision> takes back 1 GPU of its share of 2 GPUs for owed (alice)."

SCRIPTS = sorted((Path(pages_overview.__file__).parent / "static").glob("*.js"))

BROWSER = {"User-Agent": "Mozilla/5.0", "Accept": "text/html,*/*"}


@pytest.fixture
def browser(started: StartedGateway) -> Iterator[httpx.Client]:
    """A browser without a session."""
    with started.running() as client:
        options = {"headers": BROWSER, "timeout": BOUND_S, "verify": NO_TLS, "follow_redirects": True}
        with httpx.Client(base_url=client.base_url, **options) as opened:  # type: ignore[arg-type]
            yield opened


def overview(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/platform/overview").raise_for_status().json()
    return found


def log_in(browser: httpx.Client) -> httpx.Response:
    return browser.post(LOGIN_PAGE, data={"token": f" {TOKEN}\n"})


@pytest.mark.parametrize("path", [FRONT_PAGE, "/platform/jobs/mine/log"])
def test_person_without_session_sees_login(browser: httpx.Client, path: str) -> None:
    answer = browser.get(path)
    assert (answer.status_code, answer.url.path) == (200, LOGIN_PAGE)
    assert 'name="token"' in answer.text


def test_program_without_session_gets_status(browser: httpx.Client) -> None:
    assert browser.get(FRONT_PAGE, headers={"Accept": "*/*"}).status_code == 401


def test_wrong_token_is_answered_in_form(browser: httpx.Client) -> None:
    answer = browser.post(LOGIN_PAGE, data={"token": "wrong"})
    assert answer.status_code == 403
    assert "This token is wrong" in answer.text
    assert COOKIE not in browser.cookies


def test_login_leads_to_page_and_logout_back(browser: httpx.Client) -> None:
    assert log_in(browser).url.path == FRONT_PAGE
    assert browser.post(LOGOUT).url.path == LOGIN_PAGE
    assert browser.get(FRONT_PAGE).url.path == LOGIN_PAGE


def test_page_contains_no_secret_and_runs_only_its_own_script(browser: httpx.Client) -> None:
    answer = log_in(browser)
    assert TOKEN not in answer.text
    assert browser.cookies[COOKIE] not in answer.text
    assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    assert answer.url.fragment.removeprefix("key=") not in answer.text
    for file in ("style.css", "page.js"):
        assert f"/platform/static/{file}" in answer.text
    for script in SCRIPTS:
        assert browser.get(f"/platform/static/{script.name}").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("path", ["%2e%2e/api.py", "..%2fapi.py", "api.py", "..%5capi.py"])
def test_static_files_are_only_those_of_page(browser: httpx.Client, path: str) -> None:
    assert browser.get(f"/platform/static/{path}").status_code in (400, 401, 404)


def test_page_shows_jobs_by_state_with_reason(started: StartedGateway, client: httpx.Client) -> None:
    started.add("done")
    started.end(Outcome.FAILED, "done")
    started.add("waits", attempts=0)
    jobs = overview(client)["jobs"]
    assert [(job["id"], job["state"]) for job in jobs] == [
        ("mine", "STARTING"),
        ("waits", "WAITING"),
        ("done", "FAILED"),
    ]
    assert jobs[2]["message"] == "It ended."


def test_long_command_is_cut_in_lists(started: StartedGateway, client: httpx.Client) -> None:
    started.add("long", attempts=0, entrypoint="x" * 100_000)
    assert len(overview(client)["jobs"][-1]["command"]) == 300
    assert len(client.get("/platform/jobs/long").json()["entrypoint"]) == 100_000


def test_texts_never_become_markup() -> None:
    for script in SCRIPTS:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script.read_text()), (
            script
        )


def test_button_starts_environment_as_command_does() -> None:
    buttons = next(script for script in SCRIPTS if script.name == "buttons.js")
    assert f'"{environment.ENTRYPOINT}"' in buttons.read_text()
    assert environment.is_environment("dev-alice-main", environment.ENTRYPOINT)


def test_long_queue_is_counted_but_cut(started: StartedGateway, client: httpx.Client) -> None:
    for number in range(SHOWN + 3):
        started.add(f"waits-{number}", attempts=0)
    shown = overview(client)
    assert shown["counts"]["WAITING"] == SHOWN + 3
    assert sum(job["state"] == "WAITING" for job in shown["jobs"]) == SHOWN


def test_page_names_unavailable_head(client: httpx.Client) -> None:
    (problem,) = overview(client)["problems"]
    assert "does not answer" in problem


def test_only_service_that_is_down_is_marked(
    started: StartedGateway, serve: Serve, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = serve(lambda method, path: (200, "well"))
    addresses = {"JupyterLab": healthy, "MLflow": f"http://127.0.0.1:{closed_port}/health", "MinIO": healthy}
    tools = [
        {"title": title, "profile": "all", "port": 8000, "health": address} for title, address in addresses.items()
    ]
    monkeypatch.setenv("MLPLATFORM_GATEWAY_TOOLS", json.dumps(tools))
    monkeypatch.setenv("COMPOSE_PROFILES", "all")
    with started.running() as client:
        shown = overview(client)["tools"]
    assert {tool["title"]: tool["healthy"] for tool in shown} == {"JupyterLab": True, "MLflow": False, "MinIO": True}


@pytest.mark.parametrize(
    ("host", "agent", "link"),
    [
        ("127.0.0.1:8265", "Mozilla/5.0 Gecko/20100101 Firefox/140.0", "http://mlflow.localhost:8000"),
        ("localhost:9265", "Mozilla/5.0 Chrome/140.0 Safari/537.36", "http://mlflow.localhost:8000"),
        ("ray.localhost:8265", "Mozilla/5.0", "http://mlflow.localhost:8000"),
        ("127.0.0.1:8265", "Mozilla/5.0 Version/18.0 Safari/605.1.15", "http://127.0.0.1:8000"),
        ("ray.ml.example.org", "Mozilla/5.0 Version/18.0 Safari/605.1.15", "http://mlflow.ml.example.org:8000"),
        ("192.168.1.7:8265", "Mozilla/5.0", "http://192.168.1.7:8000"),
    ],
)
def test_links_have_name_of_their_own_where_browser_resolves_it(
    started: StartedGateway, monkeypatch: pytest.MonkeyPatch, host: str, agent: str, link: str
) -> None:
    tool = {"title": "MLflow", "name": "mlflow", "profile": "", "port": 8000, "health": "http://127.0.0.1:9/"}
    monkeypatch.setenv("MLPLATFORM_GATEWAY_TOOLS", json.dumps([tool]))
    with started.running() as client:
        (found,) = client.get("/platform/overview", headers={"Host": host, "User-Agent": agent}).json()["tools"]
    assert found["address"] == link


def test_changed_job_reaches_open_page(started: StartedGateway, browser: httpx.Client) -> None:
    log_in(browser)
    with browser.stream("GET", "/platform/overview?follow=1") as stream:
        lines = stream.iter_lines()
        contents = (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))
        assert [job["id"] for job in next(contents)["jobs"]] == ["mine"]
        started.add("later", attempts=0)
        changed = next(contents)
    assert [job["id"] for job in changed["jobs"]] == ["mine", "later"]
    assert changed.keys() == {"jobs", "counts"}


def share(amount: float, job: str = "", free: bool = False) -> Share:
    return Share(amount=amount, job=job, free=free)


@pytest.mark.parametrize(
    ("total", "free", "held", "expected"),
    [
        (2, 2, {}, [share(2, free=True)]),
        (2, 1, {"a": 1}, [share(1, "a"), share(1, free=True)]),
        (1, 0, {"a": 0.5, "b": 0.5}, [share(0.5, "a"), share(0.5, "b")]),
        (1, 0.5, {}, [share(0.5), share(0.5, free=True)]),
        (2, 2, {"a": 1}, [share(1, "a"), share(1, free=True)]),  # the usage is older than the list of actors
        (0, 0, {}, []),
    ],
)
def test_gpus_are_shared_out_completely(
    total: float, free: float, held: dict[str, float], expected: list[Share]
) -> None:
    holdings = [Holding(job_id, "ray-worker-0", {"GPU": amount}) for job_id, amount in held.items()]
    elsewhere = Holding("c", "ray-worker-1", {"GPU": 1})
    assert shares_of("ray-worker-0", total, free, [*holdings, elsewhere]) == expected


@pytest.fixture
def recorded() -> ListingHead:
    """A head without jobs, to which nothing can be submitted."""
    return ListingHead(RECORDED)


@pytest.fixture
def queueing(recorded: ListingHead, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartedGateway:
    """A gateway that plans for a node whose GPUs are in use."""
    monkeypatch.setenv("MLPLATFORM_STORAGE", str(tmp_path / "storage"))
    return StartedGateway(tmp_path, serve(recorded))


def queued(client: httpx.Client, *ids: str) -> dict[str, dict[str, Any]]:
    """The waiting jobs of the overview by id, once these have the first places in the queue."""
    found: dict[str, dict[str, Any]] = {}

    def complete() -> bool:
        found.clear()
        found.update((job["id"], job) for job in overview(client)["jobs"] if job["state"] == "WAITING")
        return all(job_id in found and found[job_id]["queue"] for job_id in ids)

    wait_for(complete, f"{ids} in the queue")
    assert [found[job_id]["queue"]["place"] for job_id in ids] == [*range(1, len(ids) + 1)]
    return found


def test_queue_is_shown_in_its_order_with_reasons(queueing: StartedGateway) -> None:
    gpu = {"entrypoint_num_gpus": 1, "metadata": {}}
    with queueing.running() as client:
        tokens = populate(client)
        client.patch("/platform/teams/vision", json={"share_gpus": 2}).raise_for_status()
        for name, job_id in (("otto", "borrows"), ("alice", "within")):
            with as_person(client, tokens[name]) as person:
                submit(person, job_id, **gpu).raise_for_status()
        found = queued(client, "within", "borrows")
    assert list(found) == ["within", "borrows"]
    assert [(job["team"], job["requests"]) for job in found.values()] == [("vision", "1 GPU"), ("audio", "1 GPU")]
    assert "The job waits for 1 GPU." in found["borrows"]["queue"]["reasons"]
    assert found["within"]["queue"]["latest_start"] is not None
    assert found["borrows"]["queue"]["latest_start"] is None


def test_queue_without_teams_names_none(queueing: StartedGateway) -> None:
    queueing.add("waits", attempts=0, entrypoint_num_gpus=1)
    with queueing.running() as client:
        assert queued(client, "waits")["waits"]["team"] is None


def test_jobs_that_wait_for_something_else_follow_queue(queueing: StartedGateway) -> None:
    queueing.add("restarts", attempts=0)
    with Session(queueing.store.engine) as session, session.begin():
        session.execute(update(JobRow).values(not_before=now() + timedelta(hours=1)))
    queueing.add("waits", attempts=0, entrypoint_num_gpus=1)
    with queueing.running() as client:
        found = queued(client, "waits")
    assert list(found) == ["waits", "restarts"]
    assert found["restarts"]["queue"] is None


def test_head_of_long_queue_is_shown_whenever_it_arrived(queueing: StartedGateway) -> None:
    with queueing.running() as client:
        tokens = populate(client)
        client.patch("/platform/teams/vision", json={"share_gpus": 2}).raise_for_status()
        for number in range(SHOWN + 3):
            queueing.add(f"waits-{number}", attempts=0, entrypoint_num_gpus=1)
        with as_person(client, tokens["alice"]) as alice:
            submit(alice, "within", entrypoint_num_gpus=1, metadata={}).raise_for_status()
        found = queued(client, "within", *(f"waits-{number}" for number in range(SHOWN - 1)))
    assert len(found) == SHOWN


def test_old_queue_names_its_time(
    queueing: StartedGateway, recorded: ListingHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    queueing.add("waits", attempts=0, entrypoint_num_gpus=1)
    with queueing.running() as client:
        queued(client, "waits")
        assert overview(client)["queue_time"] is None
        recorded.down = True
        monkeypatch.setattr(pages_overview, "_OLD_SECONDS", 0.5)
        wait_for(lambda: overview(client)["queue_time"], "the time of the queue")
        queued(client, "waits")


def test_command_of_other_team_is_hidden_in_queue(queueing: StartedGateway) -> None:
    with queueing.running() as client:
        tokens = populate(client)
        with as_person(client, tokens["alice"]) as alice, as_person(client, tokens["otto"]) as otto:
            submit(alice, "hers", entrypoint_num_gpus=1, metadata={}).raise_for_status()
            her, his = queued(alice, "hers")["hers"], queued(otto, "hers")["hers"]
            details = [person.get("/platform/jobs/hers").json() for person in (alice, otto)]
    assert [found["relation"] for found in details] == ["owner", "other"]
    assert [found["resources"] for found in details] == [{"entrypoint_num_gpus": 1}] * 2
    assert (her["command"], her["relation"]) == ("python train.py --secret", "owner")
    assert (his["command"], his["relation"]) == ("<hidden>", "other")
    assert (his["team"], his["requests"]) == ("vision", "1 GPU")


def test_running_job_that_was_asked_to_leave_is_shown(started: StartedGateway, client: httpx.Client) -> None:
    (before,) = overview(client)["jobs"]
    assert before["attempt"]["leave_by"] is None
    asyncio.run(Decisions(started.store.engine).preempt(Preempt("mine", 1793534400.0, "owed", WHY)))

    def asked() -> Any:
        (job,) = overview(client)["jobs"]
        return job["attempt"] if job["attempt"]["leave_by"] else None

    attempt = wait_for(asked, "the notice in the overview")
    assert (attempt["leave_by"], attempt["leave_why"]) == ("2026-11-01T12:00:00+00:00", WHY)
    (attempt,) = client.get("/platform/jobs/mine").json()["attempts"]
    assert (attempt["leave_by"], attempt["leave_why"]) == ("2026-11-01T12:00:00+00:00", WHY)


def test_job_to_be_stopped_is_marked(started: StartedGateway, client: httpx.Client) -> None:
    asyncio.run(Decisions(started.store.engine).preempt(Preempt("mine", 1793534400.0, "owed", WHY)))
    asyncio.run(started.store.request_stop("mine"))
    (job,) = overview(client)["jobs"]
    assert job["stopping"]
