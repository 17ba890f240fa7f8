"""Buttons of the front page: what a session changes with its key, and what its cookie alone does not."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest
from peopled import as_person, populate, submit
from ray_head import BOUND_S, NO_TLS, TOKEN
from started_gateway import StartedGateway

from mlplatform_gateway.http.auth import KEY, LOGIN_PAGE

LogIn = Callable[[str], tuple[httpx.Client, str]]

BROWSER = {"User-Agent": "Mozilla/5.0", "Accept": "*/*", "Sec-Fetch-Site": "same-origin"}

STOP = ("POST", "/api/jobs/hers/stop")

ELSEWHERE = [
    ("POST", "/platform/people"),
    ("DELETE", "/platform/people/bob"),
    ("POST", "/platform/teams"),
    ("PATCH", "/platform/teams/vision"),
    ("DELETE", "/platform/tokens/abc"),
    ("PUT", "/platform/secrets/KEY"),
    ("PUT", "/platform/webhook"),
    ("POST", "/platform/storage-credentials"),
    ("POST", "/platform/prune"),
    ("PUT", "/api/packages/gcs/a.zip"),
    ("POST", "/api/jobs/hers/other/stop"),
    ("DELETE", "/api/jobs/hers/stop"),
    ("PUT", "/api/serve/applications/"),
]


@pytest.fixture
def client(started: StartedGateway) -> Iterator[httpx.Client]:
    with started.running() as client:
        yield client


@pytest.fixture
def tokens(client: httpx.Client) -> dict[str, str]:
    found = populate(client)
    with as_person(client, found["alice"]) as alice:
        submit(alice, "hers").raise_for_status()
    return found


@pytest.fixture
def logged_in(client: httpx.Client) -> Iterator[LogIn]:
    """Opens a browser with a session of a token; returns it and the session's key."""
    with ExitStack() as opened:

        def log_in(token: str) -> tuple[httpx.Client, str]:
            options = {"headers": BROWSER, "timeout": BOUND_S, "verify": NO_TLS}
            browser = opened.enter_context(httpx.Client(base_url=client.base_url, **options))  # type: ignore[arg-type]
            answer = browser.post(LOGIN_PAGE, data={"token": token})
            assert answer.status_code == 303
            return browser, answer.headers["Location"].partition("#key=")[2]

        yield log_in


def test_key_lets_owner_stop_and_resume_job(tokens: dict[str, str], logged_in: LogIn) -> None:
    browser, key = logged_in(tokens["alice"])
    assert browser.request(*STOP, headers={KEY: key}).json() == {"stopped": True}
    resumed = browser.post("/platform/jobs/hers/resume", json={}, headers={KEY: key})
    assert resumed.json()["submission_id"] == "hers"


def test_key_starts_environment_in_place_of_ended_one(tokens: dict[str, str], logged_in: LogIn) -> None:
    browser, key = logged_in(tokens["alice"])
    for _ in range(2):
        assert submit_by(browser, key).status_code == 200
        assert submit_by(browser, key).status_code == 409
        assert browser.delete("/api/jobs/dev-alice-main", headers={KEY: key}).status_code == 409  # it is open
        assert browser.post("/api/jobs/dev-alice-main/stop", headers={KEY: key}).status_code == 200
        assert browser.delete("/api/jobs/dev-alice-main", headers={KEY: key}).status_code == 200


def submit_by(browser: httpx.Client, key: str) -> httpx.Response:
    body = {"entrypoint": "true", "submission_id": "dev-alice-main"}
    return browser.post("/api/jobs/", json=body, headers={KEY: key})


@pytest.mark.parametrize("headers", [{}, {"User-Agent": "curl/8", "Sec-Fetch-Site": ""}], ids=["browser", "program"])
def test_copied_cookie_alone_only_reads(
    client: httpx.Client, tokens: dict[str, str], headers: dict[str, str], logged_in: LogIn
) -> None:
    browser, _ = logged_in(tokens["alice"])
    for method, path in (STOP, ("POST", "/api/jobs/"), ("DELETE", "/api/jobs/hers"), *ELSEWHERE):
        assert browser.request(method, path, headers=headers).status_code == 405
    assert client.get("/platform/jobs/hers").json()["state"] == "WAITING"


def test_wrong_key_is_refused_and_recorded(client: httpx.Client, tokens: dict[str, str], logged_in: LogIn) -> None:
    browser, key = logged_in(tokens["alice"])
    _, of_another_session = logged_in(tokens["alice"])
    for wrong in ("", "wrong", key[:-1], of_another_session, TOKEN):
        answer = browser.request(*STOP, headers={KEY: wrong})
        assert (answer.status_code, answer.text[-13:]) == (401, "log in again.")
    assert client.get("/platform/jobs/hers").json()["state"] == "WAITING"
    failed = [entry for entry in client.get("/platform/audit").json()["entries"] if entry["verb"] == "failed log-in"]
    found = {(entry["principal"], entry["object"], entry["kind"]) for entry in failed}
    assert found == {("alice", "POST /api/jobs/hers/stop", "session")}


@pytest.mark.parametrize("name", ["bob", "lena", "otto", "ada"])
def test_key_changes_only_jobs_of_its_own_person(
    client: httpx.Client, tokens: dict[str, str], name: str, logged_in: LogIn
) -> None:
    browser, key = logged_in(tokens[name])
    for method, path in (STOP, ("DELETE", "/api/jobs/hers"), ("POST", "/platform/jobs/hers/resume")):
        assert browser.request(method, path, headers={KEY: key}).status_code == 403
    assert client.get("/platform/jobs/hers").json()["state"] == "WAITING"


def test_key_of_administrator_reaches_no_jobs_of_ray(tokens: dict[str, str], logged_in: LogIn) -> None:
    browser, key = logged_in(tokens["ada"])
    for method, path in (("POST", "/api/jobs/01000000/stop"), ("DELETE", "/api/jobs/01000000")):
        assert browser.request(method, path, headers={KEY: key}).status_code == 404


@pytest.mark.parametrize(("method", "path"), ELSEWHERE)
def test_key_changes_nothing_but_jobs(method: str, path: str, logged_in: LogIn) -> None:
    browser, key = logged_in(TOKEN)
    assert browser.request(method, path, headers={KEY: key}).status_code == 405


def test_key_without_its_session_is_worthless(tokens: dict[str, str], logged_in: LogIn) -> None:
    browser, key = logged_in(tokens["alice"])
    assert browser.post("/platform/logout").status_code == 303
    assert browser.request(*STOP, headers={KEY: key}).status_code == 401


def test_page_of_another_origin_may_not_use_key(tokens: dict[str, str], logged_in: LogIn) -> None:
    browser, key = logged_in(tokens["alice"])
    answer = browser.request(*STOP, headers={KEY: key, "Origin": "http://127.0.0.1:1"})
    assert (answer.status_code, "may not use the gateway" in answer.text) == (403, True)


def test_shared_token_stops_its_own_jobs_by_button(logged_in: LogIn) -> None:
    browser, key = logged_in(TOKEN)
    assert browser.post("/api/jobs/mine/stop", headers={KEY: key}).json() == {"stopped": True}
