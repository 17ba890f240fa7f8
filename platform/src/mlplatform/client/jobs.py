"""Jobs over Ray's Jobs REST API, with an HTTP client: submit, follow, wait, list, stop.

Of clients, only this module knows the API's paths. The protocol is that of `ray.job_submission.JobSubmissionClient`
(`ray/dashboard/modules/dashboard_sdk.py` and `ray/dashboard/modules/job/job_head.py` in Ray 2.60).
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import httpx

from mlplatform.client import git
from mlplatform.client import package as client_package
from mlplatform.client.log_tail import LOOKS, LogTail
from mlplatform.client.renamed import renamed
from mlplatform.contract import GATEWAY_HEADER, REPORT
from mlplatform.errors import AccessError, JobError, SettingsError, UnreachableError
from mlplatform.scheduling import capacity, listings
from mlplatform.scheduling.capacity import Shortage
from mlplatform.scheduling.resources import Resources as Resources
from mlplatform.scheduling.resources import WorkerGroup as WorkerGroup
from mlplatform.settings.job import Settings, settings

STATES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED")
"""Of a job, as Ray names them."""

ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})

_REPORT = re.compile(rf"{REPORT} (\{{.*\}})")

_NAME_CHARACTERS = 80
"""Of a job's name in its id."""

_POLL_SECONDS = 1.0

_REPORT_POLL_SECONDS = 0.3

_AWAY_SECONDS = 180.0
"""How long Ray's head or the driver's node may be away while a log is followed; a restarted head took 18 to 81 s."""

# Ray's dashboard answers within milliseconds, but on a busy machine its first answers took more than 10 s.
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)

_LOST_LOG_SECONDS = 15.0
"""How long the log of an ended job is asked for in vain: it may lie on a node that is gone."""

_ALL = 10_000
"""The most that Ray's state API lists."""

_LOG_TIMEOUT = httpx.Timeout(10.0, connect=5.0)

_STREAM_TIMEOUT = httpx.Timeout(None, connect=5.0)

_UPLOAD_TIMEOUT = httpx.Timeout(300.0, connect=5.0)

_NOTHING = Resources()

_log = logging.getLogger(__name__)


class _AwayError(UnreachableError):
    """The gateway answers, and what it stands on does not."""


@dataclass(frozen=True)
class Job:
    """What Ray knows about a job."""

    id: str
    status: str
    entrypoint: str
    message: str
    user: str
    started: datetime | None
    ended: datetime | None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """Read the API's `JobDetails`; times come in milliseconds since 1970."""
        return cls(
            id=answer["submission_id"] or answer["job_id"],
            status=answer["status"],
            entrypoint=answer["entrypoint"],
            message=answer.get("message") or "",
            user=(answer.get("metadata") or {}).get("user", ""),
            started=_time(answer.get("start_time")),
            ended=_time(answer.get("end_time")),
        )


@dataclass(frozen=True)
class Attempt:
    """One start of a job, as the stack's gateway knows it."""

    number: int
    outcome: str | None
    """SUCCEEDED, FAILED, STOPPED or LOST; None while it runs."""

    reason: str | None
    node: str | None
    created: datetime
    ended: datetime | None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """Read one of `attempts` of `GET /platform/jobs/ID`; times come as ISO 8601, in UTC."""
        return cls(
            number=answer["number"],
            outcome=answer["outcome"],
            reason=answer["reason"],
            node=answer["node"],
            created=datetime.fromisoformat(answer["created"]),
            ended=datetime.fromisoformat(answer["ended"]) if answer["ended"] else None,
        )


class Jobs:
    """A client of the Jobs API at `settings.ray_address`; a context manager that closes its connections.

    Every method raises:
        UnreachableError: nothing answers at the address.
        AccessError: the token is missing or refused.
        JobError: there is no such job, or the API refuses the request.
        SettingsError: the file of the token cannot be read.
    """

    def __init__(self, config: Settings | None = None) -> None:
        self._settings = config or settings()
        self._gateway = False
        """Whether the stack's gateway has answered, and not Ray's head itself."""

        self._http = httpx.Client(
            base_url=self._settings.ray_address, headers=_authorization(self._settings), timeout=_TIMEOUT
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def submit(
        self,
        entrypoint: str | Sequence[str],
        working_dir: Path | str,
        *,
        name: str = "job",
        job_id: str | None = None,
        env: Mapping[str, str] | None = None,
        resources: Resources = _NOTHING,
        workers: WorkerGroup | None = None,
        note: str | None = None,
        max_restarts_on_failure: int | None = None,
        max_restarts_on_loss: int | None = None,
        wait_for_capacity: bool = False,
        pip: Sequence[str] = (),
        on_wait: Callable[[Shortage], None] | None = None,
        retries: int | None = None,
        max_losses: int | None = None,
    ) -> str:
        """Hand a folder and the command to run in it to Ray.

        Args:
            entrypoint: a shell line, or the words of a command.
            working_dir: uploaded, without what git ignores, and the command's current folder.
            name: starts the job's id, so that people recognise it.
            job_id: the whole id, where the caller needs to know it before.
            env: more environment variables for all processes of the job.
            resources: reserved for the entry point.
            workers: the group that the job's own code will ask for; checked before anything is sent, not started.
            note: shown with the job's run.
            max_restarts_on_failure: restarts allowed after the entry point failed by its own fault; None means 0.
            max_restarts_on_loss: restarts allowed after its node or Ray was lost; None means 3.
            wait_for_capacity: on the stack, wait for a node that can run it where none ever could.
            pip: packages that Ray installs for this job alone, before it starts.
            on_wait: told what the job waits for, where it cannot start at once.
            retries: old name of max_restarts_on_failure; works until 1.0.
            max_losses: old name of max_restarts_on_loss; works until 1.0.

        Returns:
            The job's id.

        Raises:
            CapacityError: the nodes alive or lately seen can never run it, and it was not said that it shall wait for
                others; nothing was sent.
        """
        on_failure = renamed("retries", retries, "max_restarts_on_failure", max_restarts_on_failure) or 0
        on_loss = renamed("max_losses", max_losses, "max_restarts_on_loss", max_restarts_on_loss)
        folder = Path(working_dir).absolute()
        if not folder.is_dir():
            raise JobError(f"There is no folder {folder}; name the folder that holds the job's files.")
        if not wait_for_capacity and (wait := self.check_capacity(resources, workers)) and on_wait:
            on_wait(wait)
        job_id = job_id or new_id(name)
        command = entrypoint if isinstance(entrypoint, str) else shlex.join(entrypoint)
        package = self._upload(folder)
        # Who starts it again: the gateway, on any node; without one a loop on the node.
        knobs = _job_options(workers, on_failure, on_loss, wait_for_capacity) if self._gateway else {}
        noted = {"MLPLATFORM_NOTE": note} if note else {}
        runtime_env: dict[str, Any] = {
            "working_dir": package,
            "env_vars": self._environment(job_id, {**noted, **(env or {})}),
        }
        request: dict[str, Any] = {
            "entrypoint": command if self._gateway else _with_retries(command, on_failure),
            "submission_id": job_id,
            "runtime_env": {**runtime_env, "pip": list(pip)} if pip else runtime_env,
            "metadata": self._metadata(folder, command) | ({"note": note} if note else {}) | knobs,
            "entrypoint_num_cpus": resources.cpus,
            "entrypoint_num_gpus": resources.gpus,
            "entrypoint_resources": dict(resources.custom) or None,
        }
        if labels := self._settings.driver_labels:
            request["entrypoint_label_selector"] = labels
        answer = self._call("POST", "/api/jobs/", json={k: v for k, v in request.items() if v is not None})
        return str(answer.json()["submission_id"])

    def list(self, *, limit: int | None = None, state: str | None = None, user: str | None = None) -> list[Job]:
        """Return the jobs that the platform remembers, the latest first.

        Args:
            limit: at most this many; None means all.
            state: one of `STATES`, in any case; None means every state.
            user: only jobs that this user has submitted.

        Raises:
            JobError: there is no such state.
        """
        if state is not None and state.upper() not in STATES:
            raise JobError(f"Invalid state {state!r}: use one of {', '.join(STATES)}.")
        answers = [
            answer
            for answer in self._call("GET", "/api/jobs/").json()
            if (state is None or answer["status"] == state.upper())
            and (user is None or (answer.get("metadata") or {}).get("user", "") == user)
        ]
        answers.sort(key=lambda answer: answer.get("start_time") or 0, reverse=True)
        return [Job.of(answer) for answer in answers[:limit]]

    def get(self, job_id: str) -> Job:
        """One job."""
        return Job.of(self._details(job_id))

    def attempts(self, job_id: str) -> Sequence[Attempt]:
        """How often a job was started and how each start ended, the first one first; empty where no gateway counts."""
        self.get(job_id)
        if not self._gateway:
            return []
        answer = self._call("GET", f"/platform/jobs/{job_id}", job_id=job_id).json()
        return [Attempt.of(attempt) for attempt in answer["attempts"]]

    def logs(self, job_id: str) -> str:
        """Everything that the job has printed so far."""
        answer = self._call("GET", f"/api/jobs/{job_id}/logs", job_id=job_id, timeout=_LOG_TIMEOUT)
        return str(answer.json()["logs"] or "")

    def follow(self, job_id: str, *, poll_s: float = _POLL_SECONDS) -> Iterator[str]:
        """Yield the job's log line by line until the job ends: each line once, also over restarts of Ray's head.

        Args:
            poll_s: seconds between two looks at the end of the log, where no gateway sends its lines.

        Raises:
            UnreachableError: Ray has not answered for three minutes.
        """
        details, asked = self._details_patiently(job_id, known=False), time.monotonic()
        if self._gateway:
            yield from self._stream(job_id)
            return
        # A log for each node that the driver has been on.
        logs: dict[str | None, LogTail] = defaultdict(LogTail)
        while details["status"] not in ENDED:
            lines = self._new_lines(details, logs)
            if lines is None:
                self._make_ray_look(job_id)
            yield from lines or ()
            time.sleep(poll_s)
            if time.monotonic() - asked >= _POLL_SECONDS:
                details, asked = self._details_patiently(job_id), time.monotonic()
        deadline = time.monotonic() + _LOST_LOG_SECONDS
        while (lines := self._new_lines(details, logs)) is None:
            if time.monotonic() > deadline:
                _log.warning("The end of the log of job %s cannot be read: its node does not answer.", job_id)
                return
            time.sleep(_POLL_SECONDS)
        yield from lines

    def reports(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield what the job's training reports, each report when it is printed, until the job ends."""
        for line in self.follow(job_id, poll_s=_REPORT_POLL_SECONDS):
            if (report := report_in(line)) is not None:
                yield report

    def check_capacity(self, entry: Resources = _NOTHING, workers: WorkerGroup | None = None) -> Shortage | None:
        """Ask whether a job can run on the nodes alive or lately seen.

        Args:
            entry: what the entry point reserves.
            workers: the group that the job's code will ask for.

        Returns:
            What the job has to wait for; None when there is room for it now.

        Raises:
            CapacityError: it can never run; the message names the largest shape that fits.
        """
        if workers is None and not entry.amounts():
            return None
        shapes = self._call("GET", "/api/v0/nodes", params={"detail": "1", "limit": _ALL}).json()["data"]["result"]
        summary = self._call("GET", "/nodes", params={"view": "summary"}).json()["data"]
        nodes = listings.nodes_in(shapes["result"], summary, time.time())
        wait = capacity.check(nodes, entry, workers, self._settings.driver_labels)
        if wait is None:
            return None
        alive = {
            "detail": "1",
            "limit": _ALL,
            "filter_keys": "state",
            "filter_predicates": "=",
            "filter_values": "ALIVE",
        }
        actors = self._call("GET", "/api/v0/actors", params=alive).json()["data"]["result"]["result"]
        asked = {*entry.amounts(), *(workers.amounts() if workers else {})}
        return replace(wait, users=listings.users_of(asked, actors, self._call("GET", "/api/jobs/").json()))

    def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """Wait until the job has ended, however it ended.

        Raises:
            JobError: it has not ended within `timeout_s` seconds; it goes on.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        job = Job.of(self._details_patiently(job_id, known=False))
        while job.status not in ENDED:
            if deadline is not None and time.monotonic() > deadline:
                raise JobError(f"Job {job_id} is still {job.status} after {timeout_s:.0f} s; it goes on, wait again.")
            time.sleep(_POLL_SECONDS)
            job = Job.of(self._details_patiently(job_id))
        return job

    def stop(self, job_id: str) -> bool:
        """Ask a job to end: SIGTERM now, SIGKILL a few seconds later; False when it had ended before."""
        return bool(self._call("POST", f"/api/jobs/{job_id}/stop", job_id=job_id).json()["stopped"])

    def delete(self, job_id: str) -> None:
        """Delete an ended job and its log; its checkpoints and its run stay.

        Raises:
            JobError: the job does not exist, or has not ended.
        """
        self._call("DELETE", f"/api/jobs/{job_id}", job_id=job_id)

    def is_up(self) -> bool:
        """Whether the part of Ray's dashboard that keeps the jobs answers; it starts after the dashboard itself."""
        try:
            return self._http.get("/api/jobs/").is_success
        except httpx.TransportError:
            return False

    def _upload(self, folder: Path) -> str:
        name, content = client_package.build(folder)
        path = f"/api/packages/gcs/{name}"
        if self._send("GET", path).status_code == 404:
            self._call("PUT", path, content=content, timeout=_UPLOAD_TIMEOUT)
        return f"gcs://{name}"

    def _environment(self, job_id: str, env: Mapping[str, str]) -> dict[str, str]:
        return {"MLPLATFORM_JOB_ID": job_id, "MLPLATFORM_USER": self._settings.user, **env}

    def _metadata(self, folder: Path, command: str) -> dict[str, str]:
        return {"user": self._settings.user, **git.describe(folder, command)}

    def _stream(self, job_id: str) -> Iterator[str]:
        """The job's lines as the gateway sends them; goes on where it was after the gateway was away."""
        seen, asked = 0, time.monotonic()
        while True:
            ended = self._details_patiently(job_id)["status"] in ENDED
            path, parameters, read = f"/platform/jobs/{job_id}/log", {"follow": 1, "skip_lines": seen}, False
            with suppress(httpx.TransportError):
                with self._http.stream("GET", path, params=parameters, timeout=_STREAM_TIMEOUT) as answer:
                    read = answer.is_success
                    # What a gateway in trouble answers is no line of the job's.
                    for line in _lines(answer) if read else ():
                        seen, asked = seen + 1, time.monotonic()
                        yield line
                if ended and read:
                    return
            if ended and time.monotonic() - asked > _AWAY_SECONDS:
                raise UnreachableError(f"The log of job {job_id} cannot be read to its end; try again later.")
            time.sleep(0 if read and not ended else _POLL_SECONDS)

    def _details(self, job_id: str) -> dict[str, Any]:
        details: dict[str, Any] = self._call("GET", f"/api/jobs/{job_id}", job_id=job_id).json()
        return details

    def _details_patiently(self, job_id: str, known: bool = True) -> dict[str, Any]:
        """Ask until Ray's head, which may be restarting, answers.

        Args:
            known: the job was there before, so that its absence is the head's, which answers 404 or 500 until it has
                read what it remembers; else only a gateway is waited for that says it cannot answer now.
        """
        deadline = time.monotonic() + _AWAY_SECONDS
        while True:
            try:
                return self._details(job_id)
            except (UnreachableError, JobError) as error:
                if time.monotonic() > deadline or not (known or isinstance(error, _AwayError)):
                    raise
            time.sleep(_POLL_SECONDS)

    def _make_ray_look(self, job_id: str) -> None:
        """Ask for the log in the way that lets Ray find out that a driver has died with its node.

        A job manager that has not been asked since a restart leaves such a job RUNNING for ever.
        """
        with suppress(UnreachableError):
            self._send("GET", f"/api/jobs/{job_id}/logs", timeout=_LOG_TIMEOUT)

    def _new_lines(self, details: Mapping[str, Any], logs: dict[str | None, LogTail]) -> Sequence[str] | None:
        """What a job's log has more than before; None while the node that holds it does not answer."""
        node, ended = details["driver_node_id"], details["status"] in ENDED
        if node is None:
            return []
        file = {"node_id": node, "filename": f"job-driver-{details['submission_id']}.log"}
        for count in LOOKS[-1:] if ended else LOOKS:
            try:
                answer = self._send("GET", "/api/v0/logs/file", params={**file, "lines": count}, timeout=_LOG_TIMEOUT)
            except UnreachableError:
                return None
            if not answer.is_success:
                return [] if "file is not found" in answer.text else None
            lines = logs[node].join(answer.text, count, ended=ended)
            if lines is not None:
                return lines
        return None

    def _call(self, method: str, path: str, *, job_id: str | None = None, **options: Any) -> httpx.Response:
        response = self._send(method, path, **options)
        if response.is_success:
            return response
        if response.status_code == 404 and job_id:
            raise JobError(f"There is no job {job_id!r} at {self._settings.ray_address}; `mlplatform jobs` lists them.")
        last_line = (response.text.strip().splitlines() or [""])[-1]
        if response.status_code == 503:
            raise _AwayError(f"Ray at {self._settings.ray_address} cannot answer now: {last_line}")
        raise JobError(f"Ray at {self._settings.ray_address} refuses the request ({response.status_code}): {last_line}")

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        address = f"Ray at {self._settings.ray_address} (RAY_ADDRESS)"
        try:
            response = self._http.request(method, path, **options)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"{address} does not answer ({reason}); start it or correct the address.") from error
        self._gateway = GATEWAY_HEADER in response.headers
        if response.status_code in (401, 403):
            used = self._settings.ray_auth_token_path or "no token"
            raise AccessError(
                f"{address} refuses the token ({response.status_code}, used: {used}); "
                "let RAY_AUTH_TOKEN_PATH name the file with its token."
            )
        return response


def submit(entrypoint: str | Sequence[str], working_dir: Path | str, **options: Any) -> str:
    """Submit one job with the settings of this process; see `Jobs.submit`."""
    with Jobs() as jobs:
        return jobs.submit(entrypoint, working_dir, **options)


def reports(job_id: str) -> Iterator[dict[str, Any]]:
    """Yield what a job's training reports, with the settings of this process; see `Jobs.reports`."""
    with Jobs() as jobs:
        yield from jobs.reports(job_id)


def check_capacity(entry: Resources = _NOTHING, workers: WorkerGroup | None = None) -> Shortage | None:
    """Ask whether a job can run, with the settings of this process; see `Jobs.check_capacity`."""
    with Jobs() as jobs:
        return jobs.check_capacity(entry, workers)


def report_in(line: str) -> dict[str, Any] | None:
    """The metrics that a line of a job's log reports (see `training.ReportCallback`); None for other lines."""
    found = _REPORT.search(line)
    if found is None:
        return None
    try:
        report: dict[str, Any] = json.loads(found[1])
    except json.JSONDecodeError:
        return None
    return report


def _job_options(
    workers: WorkerGroup | None, max_restarts_on_failure: int, max_restarts_on_loss: int | None, wait: bool
) -> dict[str, str]:
    """Return a job's options as the gateway reads them from its metadata (`gateway.jobs.submission`)."""
    group = {"workers": workers.count, "worker_cpus": workers.cpus, "worker_gpus": workers.gpus} if workers else {}
    options = {
        **group,
        "max_restarts_on_failure": max_restarts_on_failure or None,
        "max_restarts_on_loss": max_restarts_on_loss,
        "wait_for_capacity": "true" if wait else None,
    }
    return {key: str(value) for key, value in options.items() if value is not None}


def _lines(answer: httpx.Response) -> Iterator[str]:
    """Split at line feeds alone; httpx splits at ten other characters too."""
    rest = ""
    for text in answer.iter_text():
        *whole, rest = (rest + text).split("\n")
        yield from whole
    if rest:
        yield rest


def new_id(name: str) -> str:
    """The id of a job of this name; the gateway takes 128 characters of ASCII, the first no dot and no dash."""
    plain = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).lstrip(".-")[:_NAME_CHARACTERS] or "job"
    return f"{plain}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _with_retries(command: str, retries: int) -> str:
    """A shell line that starts the command again when it fails, and counts its attempts for the job's run.

    A command that was told to end stays ended: 15 is how Ray's SIGTERM handler exits, 130 and 143 are a shell's.
    """
    if not retries:
        return command
    attempts = " ".join(map(str, range(1, retries + 2)))
    return (
        f"for MLPLATFORM_ATTEMPT in {attempts}; do export MLPLATFORM_ATTEMPT; ( {command} ); code=$?; "
        'case $code in 0|15|130|143) break;; esac; echo "Attempt $MLPLATFORM_ATTEMPT of '
        f'{retries + 1} ended with exit code $code."; done; exit $code'
    )


def _authorization(config: Settings) -> dict[str, str]:
    if config.ray_auth_token_path is None:
        return {}
    try:
        token = config.ray_auth_token_path.read_text().strip()
    except OSError as error:
        raise SettingsError(
            f"RAY_AUTH_TOKEN_PATH={str(config.ray_auth_token_path)!r} cannot be read ({error.strerror}); "
            "let it name the file with Ray's token."
        ) from error
    return {"Authorization": f"Bearer {token}"}


def _time(milliseconds: int | None) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None
