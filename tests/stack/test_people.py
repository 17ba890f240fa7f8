"""People with tokens of their own on the live stack: log-in, jobs by Ray's own clients, rights and revocation."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from botocore.exceptions import ClientError
from figures import count
from host import GRACE_S, SCRIPTS, Stack, run, wait_for
from persons import SECRET, Person, administer, log_in, submit

from mlplatform.client.jobs import Jobs

METHODS = ("GET", "POST", "PUT", "DELETE")
REVOKED_SECONDS = 60
"""A revoked token, and all that a removed person had, is refused within this time."""


def test_jobs_belong_to_people_and_obey_those_who_may(stack: Stack, people: dict[str, Person], jobs: Jobs) -> None:
    alice, tom, lea, bob = (people[role] for role in ("alice", "tom", "lea", "bob"))
    first = submit(alice, "python", "-c", "print('hello')")
    assert jobs.wait(first, timeout_s=120).status == "SUCCEEDED"
    assert jobs.get(first).user == alice.name, "the name in the metadata was believed"

    log, details = f"/api/jobs/{first}/logs", f"/api/jobs/{first}"
    assert "hello" in alice.asks("GET", log).json()["logs"]
    assert "hello" in tom.asks("GET", log).json()["logs"]
    refused = bob.asks("GET", log)
    assert refused.status_code == 403
    assert f"belongs to {alice.name}" in refused.text
    seen = {role: person.asks("GET", details).text for role, person in people.items()}
    assert SECRET in seen["alice"]
    assert all(SECRET not in seen[role] for role in ("tom", "lea", "bob"))
    assert "API_KEY" in seen["tom"]
    assert "API_KEY" not in seen["bob"]
    for role, person in people.items():
        listed = person.asks("GET", "/api/jobs/").text
        assert first in listed, role
        assert (SECRET in listed) == (role == "alice"), role

    second = submit(alice, "sleep", "1000")
    for person in (tom, bob):
        stop = person.asks("POST", f"/api/jobs/{second}/stop")
        assert stop.status_code == 403, person.name
        assert person.asks("DELETE", details).status_code == 403, person.name
    assert lea.asks("POST", f"/api/jobs/{second}/stop").json() == {"stopped": True}
    assert jobs.wait(second, timeout_s=60).status == "STOPPED"
    assert alice.asks("DELETE", details).json() == {"deleted": True}
    rows = [json.loads(line) for line in administer(stack, "audit", "--limit", "200", "--json").splitlines()]
    done = {(row["principal"], row["verb"], row["object"]) for row in rows}
    assert {(lea.name, "stop", f"job {second}"), (alice.name, "delete", f"job {first}")} <= done


def test_job_submits_for_its_owner_and_stops_nobody_elses(stack: Stack, people: dict[str, Person], jobs: Jobs) -> None:
    alice, tom = people["alice"], people["tom"]
    his = submit(tom, "sleep", "1000")
    try:
        parent = submit(alice, "python", "submits_children.py", his, folder=SCRIPTS)
        assert jobs.wait(parent, timeout_s=240).status == "SUCCEEDED", jobs.logs(parent)[-4000:]
        found = json.loads(jobs.logs(parent).partition("found: ")[2].splitlines()[0])
        assert f"belongs to {tom.name}" in found["refused"]
        assert jobs.get(his).status in ("PENDING", "RUNNING")
        assert set(found["statuses"]) == {401}, "the cluster's token opens something"
        assert found["nodes"] == 3
    finally:
        jobs.stop(his)
    rows = [json.loads(line) for line in administer(stack, "audit", "--limit", "200", "--json").splitlines()]
    submitted = {row["object"]: (row["principal"], row["kind"]) for row in rows if row["verb"] == "submit"}
    for way, child in found["children"].items():
        assert jobs.wait(child, timeout_s=120).status == "SUCCEEDED", way
        assert jobs.get(child).user == alice.name, way
        assert submitted[f"job {child}"] == (alice.name, f"job {parent}"), way
        assert tom.asks("GET", f"/api/jobs/{child}/logs").status_code == 200, "it is not of the team of alice's job"
    entries = stack.ray.get("/platform/usage", params={"by": "job"}).json()["entries"]
    (used,) = [entry for entry in entries if entry["job"] == found["children"]["sdk"]]
    assert used["person"] == alice.name


def test_clusters_token_opens_nothing_at_the_gateway(stack: Stack) -> None:
    given = {"Authorization": f"Bearer {stack.secret('cluster_token')}"}
    paths = ("/", "/platform/", "/platform/health", "/api/jobs/", "/nodes", "/platform/people", "/platform/login")
    with httpx.Client(base_url=stack.ray.base_url, headers=given) as client:
        statuses = {(method, path): client.request(method, path).status_code for method in METHODS for path in paths}
    assert set(statuses.values()) == {401}, statuses


def statuses_at_mlflow(person: Person) -> set[int]:
    """Ask so often that each of the server's processes has answered."""
    return {person.asks_mlflow("experiments/search?max_results=1") for _ in range(8)}


def test_token_of_person_is_refused_once_revoked(stack: Stack, people: dict[str, Person]) -> None:
    bob = people["bob"]
    assert bob.asks("GET", "/api/jobs/").status_code == 200
    bob_id = bob.token_file.read_text().split("_")[1]
    assert bob.asks_mlflow("experiments/search?max_results=1") == 200
    began = time.monotonic()
    administer(stack, "tokens", "revoke", bob_id)
    wait_for(lambda: bob.asks("GET", "/api/jobs/").status_code == 403, "the token to be refused", REVOKED_SECONDS)
    count("seconds until a revoked token was refused", round(time.monotonic() - began))
    left = REVOKED_SECONDS - (time.monotonic() - began)
    wait_for(lambda: statuses_at_mlflow(bob) == {401}, "MLflow to refuse the person's former password", left)
    count("seconds until MLflow refused the password of a revoked token", round(time.monotonic() - began))
    assert "was revoked" in bob.asks("GET", "/api/jobs/").text
    assert people["alice"].asks("GET", "/api/jobs/").status_code == 200


@pytest.mark.minio
def test_removal_ends_all_access_of_a_person_within_a_minute(
    stack: Stack, people: dict[str, Person], team: str, jobs: Jobs, tmp_path: Path
) -> None:
    alice = people["alice"]
    (tmp_path / "removed").mkdir()
    bob = log_in(stack, tmp_path / "removed", "bob", team)
    storage, path = bob.s3(), "/api/jobs/"
    job = submit(bob, "python", "asks_until_refused.py", folder=SCRIPTS)
    browser = httpx.Client(base_url=stack.ray.base_url, timeout=30)
    browser.post("/platform/login", data={"token": bob.token_file.read_text().strip()})

    def key_is_refused() -> bool:
        try:
            storage.list_objects_v2(Bucket="ray", MaxKeys=1)
        except ClientError as error:
            return error.response["Error"]["Code"] == "InvalidAccessKeyId"
        return False

    wait_for(lambda: "answer: 200" in jobs.logs(job), "the job to use the token of its attempt")
    assert {bob.asks("GET", path).status_code, browser.get(path).status_code} | statuses_at_mlflow(bob) == {200}
    storage.list_objects_v2(Bucket="ray", MaxKeys=1)

    began = time.monotonic()
    assert "within a minute the former one is refused" in administer(stack, "people", "remove", bob.name)
    refused: dict[str, Callable[[], bool]] = {
        "token": lambda: bob.asks("GET", path).status_code == 403,
        "browser's session": lambda: browser.get(path).status_code == 403,
        "account at MLflow": lambda: statuses_at_mlflow(bob) == {401},
        "key at MinIO": key_is_refused,
        "token of a running attempt": lambda: f"because {bob.name} was removed" in jobs.logs(job),
    }
    for access, is_refused in refused.items():
        wait_for(is_refused, f"the {access} to be refused", REVOKED_SECONDS - (time.monotonic() - began))
        count(f"seconds until the {access} of a removed person was refused", round(time.monotonic() - began))
    browser.close()

    assert jobs.wait(job, timeout_s=60).status == "SUCCEEDED", "the job of the removed person did not continue"
    assert "was revoked" in bob.types("mlplatform", "s3-credentials")
    assert alice.asks("GET", "/api/jobs/").status_code == 200
    alice.s3().list_objects_v2(Bucket="ray", MaxKeys=1)


def test_laptop_without_checkout_installs_the_command_line(
    stack: Stack, people: dict[str, Person], tmp_path: Path
) -> None:
    alice, address = people["alice"], f"http://127.0.0.1:{stack.settings.ray_port}"
    page = httpx.get(f"{address}/platform/wheel/")
    (wheel,) = re.findall(r'href="(mlplatform-[^"]+-py3-none-any\.whl)"', page.text)
    # Its dependencies come from an index of packages, or from this environment.
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(tmp_path / "site")]
    run(sys.executable, "-m", "pip", "install", *options, f"{address}/platform/wheel/{wheel}")
    code = "import sys, mlplatform.cli.app as cli; print(cli.__file__); sys.argv[1:] = ['people', 'list']; cli.main()"
    variables = {"RAY_ADDRESS": address, "RAY_AUTH_TOKEN_PATH": str(alice.token_file), "HOME": str(alice.home)}
    variables["PYTHONPATH"] = str(tmp_path / "site")
    printed = run(sys.executable, "-c", code, env=variables, cwd=tmp_path).stdout
    assert printed.startswith(str(tmp_path / "site"))
    assert alice.name in printed


@pytest.mark.nightly
@pytest.mark.usefixtures("owning_team")
def test_borrower_saves_yields_and_continues_in_its_run(
    stack: Stack, people: dict[str, Person], jobs: Jobs, started: list[str]
) -> None:
    alice, bob = people["alice"], people["bob"]

    def steps() -> list[int]:
        return [int(found) for found in re.findall(r"Step (\d+)", jobs.logs(borrower))]

    started.append(submit(alice, "sleep", "1000", gpus=1))
    borrower = submit(bob, "python", "saves_when_asked.py", "--batches=120", gpus=1, folder=SCRIPTS)
    started.append(borrower)
    wait_for(lambda: len(steps()) > 20, "the training")
    owed = submit(alice, "sleep", "3", gpus=1)
    started.append(owed)
    wait_for(lambda: jobs.get(owed).status != "PENDING", "the job within its team's share", GRACE_S + 60)
    wait_for(lambda: jobs.attempts(borrower)[0].ended, "the end of the attempt")
    assert owed in jobs.logs(borrower), "its log does not say who takes the GPU back"
    at_notice = steps()
    done = jobs.wait(borrower, timeout_s=300)
    assert done.status == "SUCCEEDED", jobs.logs(borrower)[-4000:]
    first, second = jobs.attempts(borrower)
    assert (first.outcome, second.outcome) == ("PREEMPTED", "SUCCEEDED")
    again = steps()[len(at_notice) :]
    assert 20 < again[0] <= at_notice[-1] + 1, "it did not continue from the checkpoint of the notice"
    assert again[-1] == 119
    (found,) = stack.runs_of(borrower)
    assert found["info"]["status"] == "FINISHED"
