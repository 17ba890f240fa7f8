"""Jobs over Ray's Jobs REST API, with an HTTP client: submit, follow, wait, list, stop.

Only this module knows the API's paths. The protocol is that of `ray.job_submission.JobSubmissionClient`
(`ray/dashboard/modules/dashboard_sdk.py` and `ray/dashboard/modules/job/job_head.py` in Ray 2.60).
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import httpx

from mlplatform import packages
from mlplatform.errors import AccessError, JobError, SettingsError, UnreachableError
from mlplatform.settings import Settings, settings

ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})

REPORT = "mlplatform report"
"""Starts the line of the job's log that carries a report as JSON."""

_REPORT = re.compile(rf"{REPORT} (\{{.*\}})")
_POLL_SECONDS = 1.0
# Ray's dashboard answers within milliseconds, but on a busy machine its first answers took more than 10 s.
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
_LOG_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
_UPLOAD_TIMEOUT = httpx.Timeout(300.0, connect=5.0)


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
class Resources:
    """What the entry point itself reserves; the workers of a training reserve their own."""

    cpus: float = 0
    gpus: float = 0
    custom: Mapping[str, float] = field(default_factory=dict)


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
        resources: Resources = Resources(),
    ) -> str:
        """Hand a folder and the command to run in it to Ray.

        Args:
            entrypoint: a shell line, or the words of a command.
            working_dir: uploaded, without what git ignores, and the command's current folder.
            name: starts the job's id, so that people recognise it.
            job_id: the whole id, where the caller needs to know it before.
            env: more environment variables for all processes of the job.
            resources: reserved for the entry point.

        Returns:
            The job's id.
        """
        folder = Path(working_dir).absolute()
        if not folder.is_dir():
            raise JobError(f"There is no folder {folder}; name the folder that holds the job's files.")
        job_id = job_id or f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        command = entrypoint if isinstance(entrypoint, str) else shlex.join(entrypoint)
        request: dict[str, Any] = {
            "entrypoint": command,
            "submission_id": job_id,
            "runtime_env": {"working_dir": self._upload(folder), "env_vars": self._environment(job_id, env or {})},
            "metadata": self._metadata(folder),
            "entrypoint_num_cpus": resources.cpus,
            "entrypoint_num_gpus": resources.gpus,
            "entrypoint_resources": dict(resources.custom) or None,
        }
        if self._settings.driver_label:
            label, value = self._settings.driver_label.split("=", 1)
            request["entrypoint_label_selector"] = {label: value}
        answer = self._call("POST", "/api/jobs/", json={k: v for k, v in request.items() if v is not None})
        return str(answer.json()["submission_id"])

    def list(self) -> list[Job]:
        """All jobs that the cluster remembers, the latest first."""
        jobs = [Job.of(answer) for answer in self._call("GET", "/api/jobs/").json()]
        return sorted(jobs, key=lambda job: job.started or datetime.min.replace(tzinfo=UTC), reverse=True)

    def get(self, job_id: str) -> Job:
        """One job."""
        return Job.of(self._call("GET", f"/api/jobs/{job_id}", job_id=job_id).json())

    def logs(self, job_id: str) -> str:
        """Everything that the job has printed so far."""
        answer = self._call("GET", f"/api/jobs/{job_id}/logs", job_id=job_id, timeout=_LOG_TIMEOUT)
        return str(answer.json()["logs"] or "")

    def follow(self, job_id: str) -> Iterator[str]:
        """Yield the job's log line by line, as it is written, until the job ends."""
        seen = 0
        while True:
            ended = self.get(job_id).status in ENDED
            text = self._logs_or_nothing(job_id)
            complete = len(text) if ended else text.rfind("\n") + 1
            yield from text[seen:complete].splitlines()
            seen = max(seen, complete)
            if ended:
                return
            time.sleep(_POLL_SECONDS)

    def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """Wait until the job has ended, however it ended.

        Raises:
            JobError: it has not ended within `timeout_s` seconds; it goes on.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (job := self.get(job_id)).status not in ENDED:
            if deadline is not None and time.monotonic() > deadline:
                raise JobError(f"Job {job_id} is still {job.status} after {timeout_s:.0f} s; it goes on, wait again.")
            time.sleep(_POLL_SECONDS)
        return job

    def stop(self, job_id: str) -> bool:
        """Ask a job to end: SIGTERM now, SIGKILL a few seconds later; False when it had ended before."""
        return bool(self._call("POST", f"/api/jobs/{job_id}/stop", job_id=job_id).json()["stopped"])

    def is_up(self) -> bool:
        """Whether the part of Ray's dashboard that keeps the jobs answers; it starts after the dashboard itself."""
        try:
            return self._http.get("/api/jobs/").is_success
        except httpx.TransportError:
            return False

    def _upload(self, folder: Path) -> str:
        name, content = packages.build(folder)
        path = f"/api/packages/gcs/{name}"
        if self._send("GET", path).status_code == 404:
            self._call("PUT", path, content=content, timeout=_UPLOAD_TIMEOUT)
        return f"gcs://{name}"

    def _environment(self, job_id: str, env: Mapping[str, str]) -> dict[str, str]:
        return {"MLPLATFORM_JOB_ID": job_id, "MLPLATFORM_USER": self._settings.user, **env}

    def _metadata(self, folder: Path) -> dict[str, str]:
        known = {"user": self._settings.user, "git_commit": packages.git_commit(folder)}
        return {key: value for key, value in known.items() if value}

    def _logs_or_nothing(self, job_id: str) -> str:
        """The log comes from the driver's node, and the request hangs while that node is away."""
        try:
            return self.logs(job_id)
        except UnreachableError:
            return ""

    def _call(self, method: str, path: str, *, job_id: str | None = None, **options: Any) -> httpx.Response:
        response = self._send(method, path, **options)
        if response.is_success:
            return response
        if response.status_code == 404 and job_id:
            raise JobError(f"There is no job {job_id!r} at {self._settings.ray_address}; `mlplatform jobs` lists them.")
        last_line = (response.text.strip().splitlines() or [""])[-1]
        raise JobError(f"Ray at {self._settings.ray_address} refuses the request ({response.status_code}): {last_line}")

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        address = f"Ray at {self._settings.ray_address} (RAY_ADDRESS)"
        try:
            response = self._http.request(method, path, **options)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"{address} does not answer ({reason}); start it or correct the address.") from error
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
