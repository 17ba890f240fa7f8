"""Repeated gateway crashes while jobs are submitted, started and ended: each job runs exactly as often as it should.

People of two teams submit most of them. What they reserve is in the gateway's ledger of usage to the second.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx
import pytest
from host import Stack, run, wait_for
from persons import People, Person, administer

from mlplatform.client.jobs import ENDED

CPUS = GPUS = 0.01
"""Reserved by each job, little enough for all of them to run at once."""

LEDGER = "/shared/gateway-crashes/ledger"

# One line for each start and end of an attempt, with the time. `echo` makes one `write`, atomic on a shared volume.
NOTE = f'echo "$MLPLATFORM_JOB_ID $MLPLATFORM_ATTEMPT {{what}} $(date +%s.%N)" >>{LEDGER}'
SCRIPT = f"{NOTE.format(what='start')}; sleep {{seconds:.1f}}; {NOTE.format(what='end')}; {{end}}"


@dataclass(frozen=True)
class Kind:
    """Final state of a job and the number of its attempts."""

    end: str
    status: str
    outcomes: tuple[str, ...]
    max_restarts_on_failure: int = 0


KINDS = (
    Kind("exit 0", "SUCCEEDED", ("SUCCEEDED",)),
    Kind("exit 3", "FAILED", ("FAILED",)),
    Kind('[ "$MLPLATFORM_ATTEMPT" -gt 1 ] || exit 3', "SUCCEEDED", ("FAILED", "SUCCEEDED"), max_restarts_on_failure=1),
)


@pytest.fixture
def ledger(stack: Stack) -> Iterator[str]:
    stack.execute("notebook", "sh", "-c", f"mkdir -p $(dirname {LEDGER}) && : >{LEDGER}")
    yield LEDGER
    stack.execute("notebook", "sh", "-c", f"rm -r $(dirname {LEDGER})")


@contextmanager
def started_by_hand(stack: Stack) -> Iterator[None]:
    """Disable the restart policy, whose delay grows to a minute after consecutive crashes."""
    name = stack.container("gateway")
    run("docker", "update", "--restart", "no", name)
    try:
        yield
    finally:
        run("docker", "update", "--restart", "unless-stopped", name)
        run("docker", "start", name)


def crash(stack: Stack, pid: int) -> float:
    """Kill and start the gateway; return the seconds until it answers."""
    name, begun = stack.container("gateway"), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    run("docker", "wait", name)
    run("docker", "start", name)
    wait_for(lambda: stack.ray.get("/platform/health").is_success, "the gateway to answer", 60)
    return time.monotonic() - begun


def pid_of_gateway(stack: Stack) -> int:
    return int(run("docker", "inspect", "--format", "{{.State.Pid}}", stack.container("gateway")).stdout)


def submit(client: httpx.Client, job_id: str, kind: Kind, seconds: float) -> bool:
    """Submit until the job is certainly accepted; return whether the response that confirmed it was lost."""
    body = {
        "submission_id": job_id,
        "entrypoint": SCRIPT.format(seconds=seconds, end=kind.end),
        "entrypoint_num_cpus": CPUS,
        "entrypoint_num_gpus": GPUS,
        "metadata": {"max_restarts_on_failure": str(kind.max_restarts_on_failure)},
    }
    unsure = False
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if unsure and client.get(f"/api/jobs/{job_id}").is_success:
                return True
            answer = client.post("/api/jobs/", json=body)
        except httpx.TransportError as error:
            unsure = unsure or not isinstance(error, httpx.ConnectError)
            time.sleep(0.1)
            continue
        if answer.is_success:
            return False
        if answer.status_code == 409:
            assert unsure, "the id is already in use"
            return True
        assert answer.status_code == 503, answer.text
        time.sleep(0.1)
    raise AssertionError(f"{job_id} was not accepted within 60 s")


class Clients:
    """Threads that submit jobs until they are stopped, each with the token of one owner."""

    def __init__(self, owners: Sequence[Person | Stack], tag: str, seed: int) -> None:
        self._owners = owners
        self._seed = seed
        self._tag = tag
        self.jobs: dict[str, Kind] = {}
        self.owners: dict[str, Person | Stack] = {}
        self.lost: list[str] = []
        self._stop = threading.Event()
        self.submitting = threading.Event()

    def _work(self, number: int, owner: Person | Stack) -> None:
        rng = random.Random(f"{self._seed}-{number}")  # noqa: S311 - pauses and kinds of jobs
        with owner.ray as client:
            for count in range(1000):
                # About the rate that two cores sustain: each job costs Ray 1 to 2 s of CPU time.
                if self._stop.wait(rng.uniform(4, 16)):
                    return
                job_id, kind = f"{self._tag}-{number}-{count}", rng.choice(KINDS)
                self.jobs[job_id], self.owners[job_id] = kind, owner
                self.submitting.set()
                if submit(client, job_id, kind, rng.uniform(0, 2)):
                    self.lost.append(job_id)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with ThreadPoolExecutor(len(self._owners)) as pool:
            futures = [pool.submit(self._work, number, owner) for number, owner in enumerate(self._owners)]
            try:
                yield
            finally:
                self._stop.set()
        for future in futures:
            future.result()


def ledger_of(stack: Stack) -> dict[str, list[tuple[int, str, float]]]:
    """Attempt number, `start` or `end`, and time of each event, by job and sorted by time."""
    lines: dict[str, list[tuple[int, str, float]]] = defaultdict(list)
    for line in stack.execute("notebook", "cat", LEDGER).stdout.splitlines():
        job_id, attempt, what, when = line.split()
        lines[job_id].append((int(attempt), what, float(when)))
    return {job_id: sorted(found, key=lambda one: one[2]) for job_id, found in lines.items()}


def usage(stack: Stack, by: str) -> dict[str, dict[str, Any]]:
    """Entries of the gateway's ledger, by person or job."""
    found: dict[str, dict[str, Any]] = {}
    window: dict[str, Any] = {"by": by}
    while True:
        answer = stack.ray.get("/platform/usage", params=window).raise_for_status().json()
        found |= {entry[by]: entry for entry in answer["entries"]}
        if answer["next"] is None:
            return found
        window |= {"until": answer["until"], "after": answer["next"]}


def check_usage(attempts: list[dict[str, Any]], lines: list[tuple[int, str, float]], entry: dict[str, Any]) -> None:
    """Compare the ledger with the gateway's times of attempts, and with those at which the scripts began and ended."""
    ran = sum(when if what == "end" else -when for _, what, when in lines)
    held = [datetime.fromisoformat(one["ended"]) - datetime.fromisoformat(one["created"]) for one in attempts]
    for reserved in (entry["cpu_seconds"] / CPUS, entry["gpu_seconds"] / GPUS):
        # Times in the ledger are rounded down to milliseconds.
        assert ran - 0.1 <= reserved <= sum(span.total_seconds() for span in held) + 0.1, (attempts, lines)


def check_people(stack: Stack, owners: dict[str, Person | Stack], by_job: dict[str, dict[str, Any]]) -> None:
    """Assert that the ledger charges each person exactly for the jobs that they submitted."""
    by_person = usage(stack, "person")
    for person in {owner for owner in owners.values() if isinstance(owner, Person)}:
        own = [by_job[job_id] for job_id, owner in owners.items() if owner is person]
        assert {entry["person"] for entry in own} == {person.name}
        for resource in ("cpu_seconds", "gpu_seconds"):
            charged = by_person[person.name][resource]
            assert charged == pytest.approx(sum(entry[resource] for entry in own), abs=1e-6)


@pytest.fixture
def owners(stack: Stack, people: People, team: str) -> Iterator[list[Person | Stack]]:
    """The shared token, two people of a team that has a share of a GPU, and one who only borrows."""
    administer(stack, "teams", "set", team, "--gpus", "1")
    yield [stack, people["alice"], people["tom"], people["bob"]]
    administer(stack, "teams", "set", team, "--gpus", "0")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("crashes", "seed"), [(5, 5), pytest.param(20, 6, marks=pytest.mark.nightly)], ids=["5", "20"])
def test_gateway_crashes_neither_lose_nor_duplicate_jobs(
    stack: Stack, owners: list[Person | Stack], ledger: str, crashes: int, seed: int
) -> None:
    print(f"\nseed {seed}")
    rng = random.Random(seed)  # noqa: S311 - moments
    tag = f"crash-{time.time():.0f}"
    begun = time.monotonic()
    clients = Clients(owners, tag, seed)
    outages = []
    with started_by_hand(stack), clients.at_work():
        for number in range(crashes):
            pid = pid_of_gateway(stack)
            clients.submitting.clear()
            if number % 2:
                # A submission takes 20 ms, the following start another 200 ms.
                clients.submitting.wait(10)
                time.sleep(rng.choice((rng.uniform(0, 0.02), rng.uniform(0, 0.3))))
            else:
                time.sleep(rng.uniform(0, 3))
            outages.append(crash(stack, pid))
    jobs = clients.jobs
    crashed = time.monotonic() - begun
    print(f"{crashes} crashes in {crashed:.0f} s, outages of {min(outages):.1f} to {max(outages):.1f} s; ", end="")
    print(f"{len(jobs)} jobs, the response to {len(clients.lost)} of them was lost")

    def listed() -> dict[str, str]:
        entries = [job for job in stack.ray.get("/api/jobs/").json() if (job["submission_id"] or "").startswith(tag)]
        found = {job["submission_id"]: job["status"] for job in entries}
        assert len(found) == len(entries), "a job is listed twice"
        return found

    def ended() -> bool:
        return all(status in ENDED for status in listed().values())

    wait_for(ended, "the end of all jobs", 60 + 5 * len(jobs))
    print(f"all ended {time.monotonic() - begun - crashed:.0f} s later")
    assert listed() == {job_id: kind.status for job_id, kind in jobs.items()}

    over = time.time()
    # A report ends with a whole second.
    wait_for(lambda: stack.ray.get("/platform/usage").json()["until"] > over, "a report that includes the last end")
    lines, by_job = ledger_of(stack), usage(stack, "job")
    assert lines.keys() == jobs.keys()
    for job_id, kind in jobs.items():
        attempts = stack.ray.get(f"/platform/jobs/{job_id}").json()["attempts"]
        assert [attempt["number"] for attempt in attempts] == list(range(1, len(kind.outcomes) + 1)), job_id
        assert tuple(attempt["outcome"] for attempt in attempts) == kind.outcomes, attempts
        # Sorted by time: no attempt starts twice or before the previous one has ended.
        expected = [(attempt["number"], what) for attempt in attempts for what in ("start", "end")]
        assert [(number, what) for number, what, _ in lines[job_id]] == expected, lines[job_id]
        check_usage(attempts, lines[job_id], by_job[job_id])
    check_people(stack, clients.owners, by_job)
