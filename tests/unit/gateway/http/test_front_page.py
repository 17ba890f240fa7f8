"""The front page: login, what it shows of jobs, nodes and services, its updates, and its links to MLflow."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from ray_head import BOUND_S, NO_TLS, TOKEN
from started_gateway import StartedGateway

from mlplatform.gateway.http.auth import COOKIE, FRONT_PAGE, LOGIN_PAGE, LOGOUT
from mlplatform.gateway.http.front_page.view import Gpus, gpus_of
from mlplatform.gateway.jobs.overview import SHOWN
from mlplatform.gateway.jobs.states import Outcome
from mlplatform.scheduling.listings import Holding

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
