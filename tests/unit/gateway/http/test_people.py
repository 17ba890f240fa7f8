"""People, teams and tokens over HTTP: log-in by a code, whose jobs are whose, and what others see of them."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from described import schemas
from peopled import as_person, invite, log_in, submit
from ray_head import AUTHORIZED, BOUND_S, CLUSTER_TOKEN, NO_TLS, TOKEN, Head
from sqlalchemy import update
from sqlalchemy.orm import Session
from started_gateway import StartedGateway

from mlplatform_gateway.http.auth import COOKIE
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import Outcome, Verdict
from mlplatform_gateway.people.schema import LoginCodeRow, TokenRow

BOUNDED: dict[str, Any] = {"verify": NO_TLS, "timeout": BOUND_S}
RAY_MESSAGE = "Job entrypoint command failed with exit code 1, last available logs:\nline of the log"


def exchange(client: httpx.Client, **body: str) -> httpx.Response:
    return httpx.post(f"{client.base_url}/platform/tokens", json=body, **BOUNDED)


def token_of(client: httpx.Client) -> str:
    return client.headers["authorization"].removeprefix("Bearer ")


def job(client: httpx.Client, job_id: str = "hers") -> dict[str, Any]:
    return client.get(f"/api/jobs/{job_id}").json()


def test_code_is_accepted_once(client: httpx.Client) -> None:
    client.post("/platform/teams", json={"name": "vision"})
    code = invite(client, "alice", team="vision")
    assert log_in(client, code.upper().replace("-", " ")).startswith("mlp_")
    again = exchange(client, code=code)
    assert (again.status_code, again.text[:40]) == (403, "This log-in code is wrong, used or expir")


def test_expired_code_is_rejected(started: StartedGateway, client: httpx.Client) -> None:
    code = invite(client, "ada", administrator=True)
    with Session(started.store.engine) as session, session.begin():
        session.execute(update(LoginCodeRow).values(expires=datetime.now(UTC) - timedelta(seconds=1)))
    assert exchange(client, code=code).status_code == 403


def test_new_code_replaces_the_former(client: httpx.Client) -> None:
    former, code = (invite(client, "ada", administrator=True) for _ in range(2))
    assert exchange(client, code=former).status_code == 403
    log_in(client, code)


def test_new_token_replaces_one_of_the_same_person(client: httpx.Client) -> None:
    first = log_in(client, invite(client, "ada", administrator=True))
    old = first.split("_")[1]
    foreign = exchange(client, code=invite(client, "eve", administrator=True), instead_of=old)
    assert (foreign.status_code, "The code is of eve" in foreign.text) == (409, True)
    code = invite(client, "ada")
    assert exchange(client, code=code, instead_of="a" * 20).status_code == 409
    assert exchange(client, code=code, instead_of=old).status_code == 200
    assert "was revoked" in as_person(client, first).get("/api/jobs/").text


def test_token_of_person_is_accepted_like_the_shared_one(people: dict[str, httpx.Client]) -> None:
    token, address = token_of(people["alice"]), people["alice"].base_url
    for headers in ({"Authorization": f"Bearer {token}"}, {"X-Ray-Authorization": f"Bearer {token}"}):
        assert httpx.get(f"{address}/api/jobs/", headers=headers, **BOUNDED).status_code == 200
    wrong = f"{token[:-1]}{'a' if token[-1] != 'a' else 'b'}"
    for bad in (wrong, f"mlp_{'a' * 20}_{'b' * 40}", "mlp_", token.upper()):
        answer = httpx.get(f"{address}/api/jobs/", headers={"Authorization": f"Bearer {bad}"}, **BOUNDED)
        assert (answer.status_code, answer.text[:39]) == (403, "Forbidden: Invalid authentication token")


def test_expired_and_revoked_tokens_are_named(
    started: StartedGateway, client: httpx.Client, people: dict[str, httpx.Client]
) -> None:
    ids = {token["owner"]: token["id"] for token in client.get("/platform/tokens").json()["tokens"]}
    assert client.delete(f"/platform/tokens/{ids['alice']}").status_code == 200
    revoked = people["alice"].get("/api/jobs/")
    sentence = "Forbidden: This token of alice was revoked; ask an administrator for a code and run `mlplatform login`."
    assert (revoked.status_code, revoked.text) == (403, sentence)
    with Session(started.store.engine) as session, session.begin():
        ended = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
        session.execute(update(TokenRow).where(TokenRow.owner == "bob").values(expires=ended))
    with started.running() as again:
        expired = as_person(again, token_of(people["bob"])).get("/api/jobs/")
    assert (expired.status_code, expired.text[:68]) == (
        403,
        "Forbidden: This token of bob expired on 2026-01-02 03:04 UTC; ask an",
    )


def test_removed_person_is_locked_out_and_jobs_stay(client: httpx.Client, people: dict[str, httpx.Client]) -> None:
    alice = people["alice"]
    assert submit(alice, "hers").status_code == 200
    assert alice.post("/api/authenticate").status_code == 200
    session = httpx.Client(base_url=client.base_url, cookies={COOKIE: alice.cookies[COOKIE]}, **BOUNDED)
    assert session.get("/api/jobs/hers").status_code == 200
    assert client.delete("/platform/people/alice").status_code == 200
    assert (alice.get("/api/jobs/").status_code, session.get("/api/jobs/").status_code) == (403, 403)
    assert job(client)["metadata"]["user"] == "alice"
    assert "alice" not in [person["name"] for person in client.get("/platform/people").json()["people"]]


def test_session_of_person_has_the_rights_of_the_person(client: httpx.Client, people: dict[str, httpx.Client]) -> None:
    submit(people["alice"], "hers")
    with httpx.Client(base_url=client.base_url, **BOUNDED) as browser:
        token = token_of(people["otto"])
        assert browser.post("/platform/login", data={"token": token}).headers["location"].startswith("/platform/#key=")
        assert browser.get("/api/jobs/hers/logs").status_code == 403
        assert browser.get("/platform/audit").status_code == 403
        assert "python train.py" not in browser.get("/platform/overview").text
        assert browser.post("/platform/logout").status_code == 303
    entries = client.get("/platform/audit").json()["entries"][-2:]
    assert [(entry["principal"], entry["kind"], entry["verb"]) for entry in entries] == [
        *(("otto", "token", "log-in"), ("otto", "session", "log-out"))
    ]


def test_revoked_token_ends_its_sessions(client: httpx.Client, people: dict[str, httpx.Client]) -> None:
    bob = people["bob"]
    bob.post("/api/authenticate")
    session = httpx.Client(base_url=client.base_url, cookies={COOKIE: bob.cookies[COOKIE]}, **BOUNDED)
    assert session.get("/api/jobs/").status_code == 200
    assert bob.delete(f"/platform/tokens/{token_of(bob).split('_')[1]}").status_code == 200
    assert session.get("/api/jobs/").status_code == 403


def test_people_see_and_revoke_their_own_tokens_only(client: httpx.Client, people: dict[str, httpx.Client]) -> None:
    for name, owners in (("bob", {"bob"}), ("ada", {"alice", "bob", "lena", "otto", "ada"})):
        assert {token["owner"] for token in people[name].get("/platform/tokens").json()["tokens"]} == owners
    hers = token_of(people["alice"]).split("_")[1]
    assert people["bob"].delete(f"/platform/tokens/{hers}").status_code == 404
    assert people["alice"].get("/api/jobs/").status_code == 200


def test_submission_belongs_to_the_person_and_the_team(
    started: StartedGateway, client: httpx.Client, people: dict[str, httpx.Client]
) -> None:
    variables = {"MLPLATFORM_USER": "bob"}
    assert submit(people["alice"], "hers", runtime_env={"env_vars": variables}).status_code == 200
    stored = asyncio.run(started.store.get("hers"))
    assert (stored.person, stored.team, stored.user) == ("alice", "vision", "alice")
    assert (stored.job_metadata["user"], stored.job_metadata["note"]) == ("alice", "private")
    assert stored.runtime_env["env_vars"] == {"MLPLATFORM_USER": "alice"}
    entry = client.get("/platform/audit").json()["entries"][-1]
    assert (entry["principal"], entry["verb"], entry["object"]) == ("alice", "submit", "job hers")
    assert submit(client, "shared").status_code == 200
    shared = asyncio.run(started.store.get("shared"))
    assert (shared.person, shared.team, shared.user) == (None, None, "mallory")


def test_person_in_two_teams_chooses_one(
    started: StartedGateway, client: httpx.Client, people: dict[str, httpx.Client]
) -> None:
    invite(client, "alice", team="audio")
    for team, status in (("audio", 200), ("vision", 200), ("speech", 403)):
        answer = submit(people["alice"], f"for-{team}", metadata={"team": team})
        assert answer.status_code == status, answer.text
    assert asyncio.run(started.store.get("for-audio")).team == "audio"
    assert submit(people["ada"], "admin", metadata={"team": "speech"}).status_code == 404
    assert submit(people["ada"], "admin", metadata={"team": "audio"}).status_code == 200
    assert client.delete("/platform/people/alice?team=audio").status_code == 200
    assert submit(people["alice"], "left", metadata={"team": "audio"}).status_code == 403


def test_person_who_has_left_all_teams_submits_nothing(client: httpx.Client, people: dict[str, httpx.Client]) -> None:
    assert client.delete("/platform/people/otto?team=audio").status_code == 200
    for metadata in ({}, {"team": ""}, {"team": "audio"}):
        answer = submit(people["otto"], "mine-alone", metadata=metadata)
        assert (answer.status_code, answer.text) == (403, "otto is in no team; ask an administrator to add you to one.")
    assert submit(people["ada"], "of-no-team").status_code == 200


def test_others_see_owner_shape_state_and_reason_only(
    started: StartedGateway, client: httpx.Client, people: dict[str, httpx.Client]
) -> None:
    submit(people["alice"], "hers", entrypoint_num_gpus=1)
    _fail(started, "hers")
    seen = job(people["otto"])
    assert seen["metadata"] == {
        **{"user": "alice", "team": "vision", "workers": "2", "worker_gpus": "1", "worker_cpus": "1"},
        "entrypoint_num_gpus": "1",
    }
    assert (seen["status"], seen["entrypoint"], seen["runtime_env"]) == ("FAILED", "<hidden>", {})
    assert seen["message"] == RAY_MESSAGE.splitlines()[0]
    attempts = people["otto"].get("/platform/jobs/hers").json()
    assert attempts["attempts"][0]["reason"] == RAY_MESSAGE.splitlines()[0]
    for text in (json.dumps(seen), json.dumps(attempts), people["otto"].get("/api/jobs/").text):
        for secret in ("value-of-key", "KEY", "train.py", "private", "line of the log"):
            assert secret not in text, text


def test_reason_of_rejected_job_is_for_the_team(started: StartedGateway, people: dict[str, httpx.Client]) -> None:
    """Ray 2.60 quotes fields of the runtime environment (`_private/runtime_env/validation.py`)."""
    submit(people["alice"], "hers")
    reason = "Ray rejects the job: ValueError: runtime_env['pip'] must include field 'packages', but got https://a:b@c"
    _fail(started, "hers", reason)
    for path in ("/api/jobs/hers", "/api/jobs/", "/platform/jobs/hers", "/platform/overview"):
        shown = {name: people[name].get(path).text for name in ("bob", "otto")}
        assert {name: ("Ray rejects the job" in text, "a:b@c" in text) for name, text in shown.items()} == {
            "bob": (True, True),
            "otto": (True, False),
        }, path


def test_values_of_variables_are_for_owner_only(client: httpx.Client, people: dict[str, httpx.Client]) -> None:
    submit(people["alice"], "hers")
    submit(people["ada"], "of-ada")
    submit(client, "shared")
    values = {name: job(seen)["runtime_env"]["env_vars"]["KEY"] for name, seen in people.items() if name != "otto"}
    hidden = "<redacted>"
    assert values == {"alice": "value-of-key", "bob": hidden, "lena": hidden, "ada": hidden}
    for name, administrator, visible in (
        ("ada", people["ada"], {"of-ada", "shared"}),
        ("shared token", client, {"shared"}),
    ):
        for job_id in ("hers", "of-ada", "shared"):
            found = administrator.get(f"/api/jobs/{job_id}").json()["runtime_env"]["env_vars"]["KEY"]
            assert found == ("value-of-key" if job_id in visible else hidden), (name, job_id)
        listed = {entry["submission_id"]: entry for entry in administrator.get("/api/jobs/").json()}
        seen = {job_id for job_id in listed if "value-of-key" in str(listed[job_id])}
        assert (seen, listed.keys()) == (visible, {"mine", "hers", "of-ada", "shared"}), name
    for name, value in values.items():
        listed = {entry["submission_id"]: entry for entry in people[name].get("/api/jobs/").json()}
        assert listed["hers"]["runtime_env"]["env_vars"]["KEY"] == value
        assert listed["mine"]["runtime_env"] == {}
    browser = {"User-Agent": "Mozilla/5.0"}
    assert people["alice"].get("/api/jobs/hers", headers=browser).json()["runtime_env"]["env_vars"]["KEY"] == hidden


def test_job_of_shared_token_is_controlled_by_administrators(people: dict[str, httpx.Client]) -> None:
    for name in ("alice", "lena"):
        answer = people[name].post("/api/jobs/mine/stop")
        assert (answer.status_code, "belongs to the shared token" in answer.text) == (403, True)
    assert people["ada"].post("/api/jobs/mine/stop").status_code == 200


def test_head_gets_the_cluster_token_only(started: StartedGateway, head: Head) -> None:
    started.head = head.address
    with started.running() as client:
        token = log_in(client, invite(client, "ada", administrator=True))
        for name in ("Authorization", "X-Ray-Authorization"):
            sent = httpx.get(f"{client.base_url}/nodes", headers={name: f"Bearer {token}"}, **BOUNDED).json()
            assert [value for key, value in sent["headers"] if "authorization" in key] == [f"Bearer {CLUSTER_TOKEN}"]
            assert token not in str(sent)
            # On paths that need no token, none is checked.
            for credential in (f"Bearer {token}", f"bearer {token}", token, f"Basic {token}"):
                sent = httpx.get(f"{client.base_url}/api/gcs_healthz", headers={name: credential}, **BOUNDED).json()
                assert token not in str(sent), credential
        both = {"Authorization": f"Bearer {TOKEN}", "X-Ray-Authorization": f"bearer {token}"}
        assert token not in httpx.get(f"{client.base_url}/nodes", headers=both, **BOUNDED).text


def test_failed_log_in_of_person_is_recorded_by_name(client: httpx.Client, people: dict[str, httpx.Client]) -> None:
    client.delete("/platform/people/bob")
    people["bob"].get("/api/jobs/")
    entry = client.get("/platform/audit").json()["entries"][-1]
    assert (entry["principal"], entry["verb"], entry["object"]) == ("bob", "failed log-in", "GET /api/jobs/")


def test_teams_are_added_and_changed(client: httpx.Client) -> None:
    added = client.post("/platform/teams", json={"name": "vision", "share_gpus": 2, "caps": {"team": {"gpus": 4}}})
    expected = {"name": "vision", "share_gpus": 2, "share_cpus": 0, "weight": 1, "default_limit_s": 86400}
    expected |= {"idle_s": 1800, "shells": True, "budget": "", "used_gpu_hours": None}
    assert added.json() == {**expected, "caps": {"team": {"gpus": 4}}}
    changed = client.patch("/platform/teams/vision", json={"weight": 3})
    assert changed.json() == {**expected, "weight": 3, "caps": {"team": {"gpus": 4}}}
    assert client.post("/platform/teams", json={"name": "vision"}).status_code == 409
    assert client.patch("/platform/teams/audio", json={}).status_code == 404
    assert client.post("/platform/people", json={"name": "alice", "team": "a\0"}).status_code == 404
    assert [team["name"] for team in client.get("/platform/teams").json()["teams"]] == ["vision"]
    entry = client.get("/platform/audit").json()["entries"][-1]
    assert (entry["verb"], entry["object"]) == ("set", "team vision")
    assert (entry["before"]["weight"], entry["after"]["weight"]) == (1, 3)


def test_team_in_use_is_removed_with_force_only(client: httpx.Client, people: dict[str, httpx.Client]) -> None:
    submit(people["alice"], "hers")
    invite(client, "alice", team="audio")
    invite(client, "ada", team="vision")
    refused = client.delete("/platform/teams/vision")
    assert (refused.status_code, refused.text) == (
        409,
        "Team vision has 1 open job, which would continue without its share, and people who are in no other team and "
        "would submit nothing: bob, lena; `mlplatform teams remove vision --force` removes it nevertheless.",
    )
    assert submit(people["bob"], "his").status_code == 200
    assert client.delete("/platform/teams/vision?force=1").json() == {"removed": "vision"}
    assert [team["name"] for team in client.get("/platform/teams").json()["teams"]] == ["audio"]
    teams = {person["name"]: [*person["teams"]] for person in client.get("/platform/people").json()["people"]}
    assert teams == {"ada": [], "alice": ["audio"], "bob": [], "lena": [], "otto": ["audio"]}
    entry = client.get("/platform/audit").json()["entries"][-1]
    assert (entry["principal"], entry["verb"], entry["object"]) == ("shared token", "remove", "team vision")
    assert entry["before"]["people"] == "ada (member), alice (member), bob (member), lena (lead)"
    assert (entry["before"]["weight"], entry["after"]) == (1, None)
    assert submit(people["bob"], "later").text == "bob is in no team; ask an administrator to add you to one."
    assert submit(people["alice"], "again").status_code == 200
    assert [job(people[name])["entrypoint"] == "<hidden>" for name in ("alice", "bob", "ada")] == [False, True, False]
    assert client.delete("/platform/teams/vision").status_code == 404


def test_team_of_nobody_is_removed(client: httpx.Client, people: dict[str, httpx.Client]) -> None:
    assert client.delete("/platform/people/otto").status_code == 200
    assert client.delete("/platform/teams/audio").status_code == 200
    assert client.post("/platform/people", json={"name": "otto", "team": "audio"}).status_code == 404
    assert people["lena"].delete("/platform/teams/vision").status_code == 403


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/platform/people", {"name": "job", "administrator": True}, "'job' is reserved"),
        ("/platform/people", {"name": "Alice"}, "'Alice'"),
        ("/platform/people", {"name": "alice"}, "--team"),
        ("/platform/people", {"name": "alice", "role": "x"}, "role"),
        ("/platform/people", {"name": "ada", "administrator": True, "lead": True}, "--team"),
        ("/platform/tokens", {"code": "x", "instead_of": "a\0"}, "instead_of"),
        ("/platform/teams", {"name": "a"}, "'a'"),
        ("/platform/teams", {"name": "vision", "weight": -1}, "weight=-1"),
        ("/platform/teams", {"name": "vision", "caps": {"team": {"disks": 1}}}, "caps.team.disks"),
    ],
)
def test_invalid_values_are_named(client: httpx.Client, path: str, body: dict[str, Any], named: str) -> None:
    answer = client.post(path, json=body)
    assert (answer.status_code, named in answer.text) == (400, True), answer.text


def test_with_nobody_added_rows_have_no_owner(started: StartedGateway, client: httpx.Client) -> None:
    submit(client, "new")
    with Session(started.store.engine) as session:
        assert session.query(JobRow.person, JobRow.team).all() == [(None, None)] * 2
    assert client.get("/platform/people").json() == {"people": [], "you": ""}
    assert httpx.get(f"{client.base_url}/api/jobs/", headers=AUTHORIZED, **BOUNDED).status_code == 200


def test_answers_have_the_fields_of_their_description(client: httpx.Client, people: dict[str, httpx.Client]) -> None:
    for path, key, schema in (
        ("/platform/people", "people", "Person"),
        ("/platform/teams", "teams", "Team"),
        ("/platform/tokens", "tokens", "Token"),
    ):
        described = schemas()[schema]
        assert client.get(path).json()[key][0].keys() == described["properties"].keys() == set(described["required"])


def _fail(started: StartedGateway, job_id: str, message: str = RAY_MESSAGE) -> None:
    """Let the job's first attempt fail, with a message as Ray writes it."""
    assert asyncio.run(started.store.begin_attempt(job_id))
    verdict = Verdict(Outcome.FAILED, message, 1)
    assert asyncio.run(started.store.end_attempt(job_id, 1, verdict, None, False))
