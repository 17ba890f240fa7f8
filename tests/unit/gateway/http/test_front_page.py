"""The front page: login, what it shows of jobs, nodes and services, its updates, and its links to MLflow."""

import asyncio
import html
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

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

from mlplatform_gateway.http.auth import COOKIE, FRONT_PAGE, LOGIN_PAGE, LOGOUT
from mlplatform_gateway.jobs.decisions import Decisions
from mlplatform_gateway.jobs.overview import SHOWN
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import Outcome
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.pages import view as front_page_view
from mlplatform_gateway.pages.view import Gpus, gpus_of
from mlplatform_gateway.queue.planner.queue import Preempt
from mlplatform_gateway.ray.listings import Holding

WHY = "Team <vision> takes back 1 GPU of its share of 2 GPUs for owed (alice)."

BROWSER = {"User-Agent": "Mozilla/5.0", "Accept": "text/html,*/*"}


@pytest.fixture
def browser(started: StartedGateway) -> Iterator[httpx.Client]:
    """A browser without a session."""
    with started.running() as client:
        options = {"headers": BROWSER, "timeout": BOUND_S, "verify": NO_TLS, "follow_redirects": True}
        with httpx.Client(base_url=client.base_url, **options) as opened:  # type: ignore[arg-type]
            yield opened


def log_in(browser: httpx.Client) -> httpx.Response:
    return browser.post(LOGIN_PAGE, data={"token": f" {TOKEN}\n"})


@pytest.mark.parametrize("path", [FRONT_PAGE, "/platform/jobs/mine/run"])
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
    for file in ("style.css", "live.js"):
        assert f"/platform/static/{file}" in answer.text
        assert browser.get(f"/platform/static/{file}").status_code == 200


@pytest.mark.parametrize("path", ["%2e%2e/view.py", "..%2fview.py", "view.py", "..%5cview.py"])
def test_static_files_are_only_those_of_page(browser: httpx.Client, path: str) -> None:
    assert browser.get(f"/platform/static/{path}").status_code in (400, 401, 404)


def test_page_shows_jobs_by_state_with_reason(started: StartedGateway, browser: httpx.Client) -> None:
    started.add("done")
    started.end(Outcome.FAILED, "done")
    started.add("waits", attempts=0)
    text = log_in(browser).text
    running, waiting, ended = (text.index(f"<h2>{title}") for title in ("Running", "Waiting", "Ended"))
    assert running < text.index("/#/jobs/mine") < waiting < text.index("/#/jobs/waits") < ended
    assert text.index("/#/jobs/done") > ended
    assert "It ended." in text[ended:]


def test_job_texts_are_escaped(started: StartedGateway, browser: httpx.Client) -> None:
    started.add("script", attempts=0, entrypoint="echo '<script>alert(1)</script>'")
    text = log_in(browser).text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_long_queue_is_counted_but_cut(started: StartedGateway, browser: httpx.Client) -> None:
    for number in range(SHOWN + 3):
        started.add(f"waits-{number}", attempts=0)
    text = log_in(browser).text
    assert f'Waiting <span class="count">{SHOWN + 3}</span>' in text
    assert text.count("/platform/jobs/waits-") == 3 * SHOWN


def test_page_names_unavailable_head(browser: httpx.Client) -> None:
    assert "does not answer" in log_in(browser).text


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
        text = client.get(FRONT_PAGE).text
    shown = re.findall(r'<li class="(ok|down)">(.*?)</li>', text, re.DOTALL)
    assert [re.sub(r"<.*?>", "", entry).split() for _, entry in shown] == [
        ["JupyterLab"],
        ["MLflow", "does", "not", "answer"],
        ["MinIO"],
    ]
    assert [state for state, _ in shown] == ["ok", "down", "ok"]


@pytest.mark.parametrize(
    ("host", "agent", "link"),
    [
        ("127.0.0.1:8265", "Mozilla/5.0 Gecko/20100101 Firefox/140.0", "http://mlflow.localhost:8000/"),
        ("localhost:9265", "Mozilla/5.0 Chrome/140.0 Safari/537.36", "http://mlflow.localhost:8000/"),
        ("ray.localhost:8265", "Mozilla/5.0", "http://mlflow.localhost:8000/"),
        ("127.0.0.1:8265", "Mozilla/5.0 Version/18.0 Safari/605.1.15", "http://127.0.0.1:8000/"),
        ("ray.ml.example.org", "Mozilla/5.0 Version/18.0 Safari/605.1.15", "http://mlflow.ml.example.org:8000/"),
        ("192.168.1.7:8265", "Mozilla/5.0", "http://192.168.1.7:8000/"),
    ],
)
def test_links_have_name_of_their_own_where_browser_resolves_it(
    started: StartedGateway, monkeypatch: pytest.MonkeyPatch, host: str, agent: str, link: str
) -> None:
    tool = {"title": "MLflow", "name": "mlflow", "profile": "", "port": 8000, "health": "http://127.0.0.1:9/"}
    monkeypatch.setenv("MLPLATFORM_GATEWAY_TOOLS", json.dumps([tool]))
    with started.running() as client:
        page = client.get(FRONT_PAGE, headers={"Host": host, "User-Agent": agent}).text
    assert re.findall(r'href="(http[^"]*)">MLflow', page) == [link]


def test_changed_job_reaches_open_page(started: StartedGateway, browser: httpx.Client) -> None:
    log_in(browser)
    with browser.stream("GET", "/platform/live") as stream:
        lines = stream.iter_lines()
        contents = (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))
        assert "/#/jobs/later" not in next(contents)
        started.add("later", attempts=0)
        assert "/#/jobs/later" in next(contents)


@pytest.mark.parametrize("page", ["run", "model"])
def test_missing_page_at_mlflow_is_named(browser: httpx.Client, page: str) -> None:
    log_in(browser)
    answer = browser.get(f"/platform/jobs/mine/{page}")
    assert answer.status_code == 404
    assert "mine" in answer.text


@pytest.mark.parametrize(
    ("total", "free", "held", "expected"),
    [
        (2, 2, {}, [Gpus(2, free=True)]),
        (2, 1, {"a": 1}, [Gpus(1, "a"), Gpus(1, free=True)]),
        (1, 0, {"a": 0.5, "b": 0.5}, [Gpus(0.5, "a"), Gpus(0.5, "b")]),
        (1, 0.5, {}, [Gpus(0.5), Gpus(0.5, free=True)]),
        (2, 2, {"a": 1}, [Gpus(1, "a"), Gpus(1, free=True)]),  # the usage is older than the list of actors
        (0, 0, {}, []),
    ],
)
def test_gpus_are_shared_out_completely(
    total: float, free: float, held: dict[str, float], expected: list[Gpus]
) -> None:
    holdings = [Holding(job_id, "ray-worker-0", {"GPU": amount}) for job_id, amount in held.items()]
    elsewhere = Holding("c", "ray-worker-1", {"GPU": 1})
    assert gpus_of("ray-worker-0", total, free, [*holdings, elsewhere]) == expected


@pytest.fixture
def recorded() -> ListingHead:
    """A head without jobs, to which nothing can be submitted."""
    return ListingHead(RECORDED)


@pytest.fixture
def queueing(recorded: ListingHead, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartedGateway:
    """A gateway that plans for a node whose GPUs are in use."""
    monkeypatch.setenv("MLPLATFORM_STORAGE", str(tmp_path / "storage"))
    return StartedGateway(tmp_path, serve(recorded))


def page_with(client: httpx.Client, *texts: str) -> str:
    """The page once it has all of these texts, without its markup's escapes and line breaks."""
    shown = [""]

    def complete() -> bool:
        shown[0] = " ".join(html.unescape(client.get(FRONT_PAGE).text).split())
        return all(text in shown[0] for text in texts)

    wait_for(complete, f"{texts} on the page")
    return shown[0]


def place(number: int) -> str:
    return f'<strong class="place" title="place in the queue">{number}</strong>'


def test_queue_is_shown_in_its_order_with_reasons(queueing: StartedGateway) -> None:
    gpu = {"entrypoint_num_gpus": 1, "metadata": {}}
    with queueing.running() as client:
        tokens = populate(client)
        client.patch("/platform/teams/vision", json={"share_gpus": 2}).raise_for_status()
        for name, job_id in (("otto", "borrows"), ("alice", "within")):
            with as_person(client, tokens[name]) as person:
                submit(person, job_id, **gpu).raise_for_status()
        text = page_with(client, place(1), place(2))
    first, second = (text.index(place(number)) for number in (1, 2))
    assert first < text.index("/#/jobs/within") < second < text.index("/#/jobs/borrows")
    assert "team vision, requests 1 GPU, since" in text[first:second]
    assert "team audio, requests 1 GPU, since" in text[second:]
    assert '<p class="reason">The job waits for 1 GPU.</p>' in text[second:]
    assert "if all jobs keep to their limits" in text[first:second]
    assert "if all jobs keep to their limits" not in text[second:]


def test_queue_without_teams_names_none(queueing: StartedGateway) -> None:
    queueing.add("waits", attempts=0, entrypoint_num_gpus=1)
    with queueing.running() as client:
        text = page_with(client, place(1))
    assert "<p>requests 1 GPU, since" in text
    assert "team default" not in text


def test_jobs_that_wait_for_something_else_follow_queue(queueing: StartedGateway) -> None:
    queueing.add("restarts", attempts=0)
    with Session(queueing.store.engine) as session, session.begin():
        session.execute(update(JobRow).values(not_before=now() + timedelta(hours=1)))
    queueing.add("waits", attempts=0, entrypoint_num_gpus=1)
    with queueing.running() as client:
        text = page_with(client, place(1))
    assert text.index(place(1)) < text.index("/#/jobs/waits") < text.index("/#/jobs/restarts")
    assert place(2) not in text


def test_head_of_long_queue_is_shown_whenever_it_arrived(queueing: StartedGateway) -> None:
    with queueing.running() as client:
        tokens = populate(client)
        client.patch("/platform/teams/vision", json={"share_gpus": 2}).raise_for_status()
        for number in range(SHOWN + 3):
            queueing.add(f"waits-{number}", attempts=0, entrypoint_num_gpus=1)
        with as_person(client, tokens["alice"]) as alice:
            submit(alice, "within", entrypoint_num_gpus=1, metadata={}).raise_for_status()
        text = page_with(client, "/#/jobs/within", place(1), place(SHOWN))
    assert text.index(place(1)) < text.index("/#/jobs/within") < text.index(place(2))
    assert text.count('class="place"') == SHOWN
    assert text.count("/platform/jobs/waits-") == 3 * (SHOWN - 1)


def test_old_queue_names_its_time(
    queueing: StartedGateway, recorded: ListingHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    queueing.add("waits", attempts=0, entrypoint_num_gpus=1)
    with queueing.running() as client:
        assert "Ray has not answered since" not in page_with(client, place(1))
        recorded.down = True
        monkeypatch.setattr(front_page_view, "_OLD_SECONDS", 0.5)
        page_with(client, "Ray has not answered since, so no job starts.", place(1))


def test_command_of_other_team_is_hidden_in_queue(queueing: StartedGateway) -> None:
    with queueing.running() as client:
        tokens = populate(client)
        with as_person(client, tokens["alice"]) as alice, as_person(client, tokens["otto"]) as otto:
            submit(alice, "hers", entrypoint_num_gpus=1, metadata={}).raise_for_status()
            assert "python train.py --secret" in page_with(alice, place(1))
            text = page_with(otto, place(1))
    assert "/#/jobs/hers" in text
    assert "python train.py --secret" not in text
    assert "team vision, requests 1 GPU" in text


def test_running_job_that_was_asked_to_leave_is_shown(started: StartedGateway, browser: httpx.Client) -> None:
    log_in(browser)
    assert "asked to leave" not in browser.get(FRONT_PAGE).text
    asyncio.run(Decisions(started.store.engine).preempt(Preempt("mine", 1793534400.0, "owed", WHY)))
    text = " ".join(browser.get(FRONT_PAGE).text.split())
    until = '<time datetime="2026-11-01T12:00:00+00:00">2026-11-01 12:00 UTC</time>'
    assert f"asked to leave: it has until {until} to save its state. {html.escape(WHY)}" in text
    (attempt,) = browser.get("/platform/jobs/mine").json()["attempts"]
    assert (attempt["leave_by"], attempt["leave_why"]) == ("2026-11-01T12:00:00+00:00", WHY)


def test_notice_of_job_to_be_stopped_is_not_shown(started: StartedGateway, browser: httpx.Client) -> None:
    log_in(browser)
    asyncio.run(Decisions(started.store.engine).preempt(Preempt("mine", 1793534400.0, "owed", WHY)))
    asyncio.run(started.store.request_stop("mine"))
    assert "asked to leave" not in browser.get(FRONT_PAGE).text
