"""Jobs over the gateway's Jobs REST API, with an HTTP client: submit, follow, wait, list, stop, delete.

The protocol is that of `ray.job_submission.JobSubmissionClient`
(`ray/dashboard/modules/dashboard_sdk.py` and `ray/dashboard/modules/job/job_head.py` in Ray 2.60).
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx
from pydantic import RootModel

from mlplatform.api import jobs as api
from mlplatform.api.cluster import Capacity
from mlplatform.api.jobs import Attempt, Job
from mlplatform.api.people import People
from mlplatform.capacity.resources import Resources as Resources
from mlplatform.capacity.resources import Shortage
from mlplatform.capacity.resources import WorkerGroup as WorkerGroup
from mlplatform.client import connection, request
from mlplatform.client import package as client_package
from mlplatform.client.connection import Connection
from mlplatform.client.follow import ENDED as ENDED
from mlplatform.client.follow import follow, follow_text
from mlplatform.client.follow import report_in as report_in
from mlplatform.client.request import new_id as new_id
from mlplatform.errors import JobError
from mlplatform.settings.job import Settings, settings
from mlplatform.text import durations

STATES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED")
"""States of a job, as Ray names them."""

_LOG_TIMEOUT = httpx.Timeout(10.0, connect=5.0)

_UPLOAD_TIMEOUT = httpx.Timeout(300.0, connect=5.0)

_NOTHING = Resources()

_JobList = RootModel[list[Job]]


class Jobs:
    """A client of the Jobs API at `settings.ray_address`; a context manager that closes its connections.

    Every method raises:
        UnreachableError: nothing answers at the address.
        AccessError: the token is missing or rejected.
        JobError: there is no such job, or the API rejects the request.
        SettingsError: the file of the token cannot be read.
    """

    def __init__(self, config: Settings | None = None) -> None:
        self._settings = config or settings()
        self._link = Connection(self._settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.http.close()

    def submit(
        self,
        entrypoint: str | Sequence[str],
        working_dir: Path | str | None,
        *,
        name: str = "job",
        job_id: str | None = None,
        env: Mapping[str, str] | None = None,
        resources: Resources = _NOTHING,
        workers: WorkerGroup | None = None,
        note: str | None = None,
        max_restarts_on_failure: int | None = None,
        max_restarts_on_loss: int | None = None,
        limit_s: float | None = None,
        job_class: str | None = None,
        at_most: int | None = None,
        after: Sequence[str] = (),
        schedule: str | None = None,
        timezone: str | None = None,
        wait_for_capacity: bool = False,
        pip: Sequence[str] = (),
        on_wait: Callable[[Shortage], None] | None = None,
    ) -> str:
        """Upload a folder and submit the command to run in it.

        Args:
            entrypoint: a shell command line, or the words of a command.
            working_dir: uploaded without the files that git ignores and the command does not name; it runs there. None
                for a command that needs no files.
            name: prefix of the job's id, so that people recognize it.
            job_id: the whole id, if the caller needs to know it in advance.
            env: additional environment variables for all processes of the job.
            resources: resources reserved for the entry point.
            workers: the group that the job's own code will request; checked before anything is sent, not started.
            note: shown with the job's run.
            max_restarts_on_failure: restarts allowed after a failure of the entry point itself; None means 0.
            max_restarts_on_loss: restarts allowed after its node or Ray was lost; None means 3.
            limit_s: seconds from the start of an attempt after which others may have its resources; None means the
                limit of the owner's team, if any.
            job_class: `urgent`, `normal` or `idle`, which orders the jobs of a team; None means `normal`. Where people
                have accounts, only leads and administrators may submit urgent jobs.
            at_most: start it only while fewer of the submitter's jobs with this name and a limit run; None means
                unlimited.
            after: ids of jobs that must have succeeded before it starts; if one does not succeed, it is stopped.
            schedule: cron expression, in `timezone` (None: UTC); such jobs are submitted then, and this one never runs.
            wait_for_capacity: wait for a node that can run the job, if no current node ever can, instead of being
                rejected.
            pip: packages that Ray installs for this job only, before it starts.
            on_wait: called with a description of what the job waits for, if it cannot start at once.

        Returns:
            The job's id.

        Raises:
            CapacityError: the nodes alive or recently seen can never run it, and `wait_for_capacity` is not set;
                nothing was uploaded.
            JobError: the folder does not exist.
        """
        folder = None if working_dir is None else Path(working_dir).absolute()
        if folder is not None and not folder.is_dir():
            raise JobError(f"There is no folder {folder}; name the folder that holds the job's files.")
        if not wait_for_capacity and (wait := self.check_capacity(resources, workers)) and on_wait:
            on_wait(wait)
        job_id = job_id or new_id(name)
        command = entrypoint if isinstance(entrypoint, str) else shlex.join(entrypoint)
        package = None if folder is None else self._upload(folder, command)
        group = {"workers": workers.count, "worker_cpus": workers.cpus, "worker_gpus": workers.gpus} if workers else {}
        options: dict[str, Any] = {
            **group,
            "max_restarts_on_failure": max_restarts_on_failure or None,
            "max_restarts_on_loss": max_restarts_on_loss,
            "time_limit": None if limit_s is None else durations.written(limit_s),
            "class": job_class,
            "group": None if at_most is None else request.plain_name(name),
            "at_most": at_most,
            "mlplatform.after": ",".join(after) if after else None,
            api.SCHEDULE: schedule,
            "mlplatform.timezone": timezone,
            "wait_for_capacity": "true" if wait_for_capacity else None,
        }
        body = request.body(self._settings, job_id, command, folder, package, resources, env or {}, note, pip, options)
        return self._link.read(api.Submitted, "POST", "/api/jobs/", json=body).submission_id

    def list(self, *, limit: int | None = None, state: str | None = None, user: str | None = None) -> list[Job]:
        """Return the stored jobs, latest first.

        Args:
            limit: at most this many; None means all.
            state: one of `STATES`, in any case; None means every state.
            user: only jobs that this user has submitted.

        Raises:
            JobError: there is no such state.
        """
        if state is not None and state.upper() not in STATES:
            raise JobError(f"Invalid state {state!r}: use one of {', '.join(STATES)}.")
        found = [
            job
            for job in self._link.read(_JobList, "GET", "/api/jobs/").root
            if (state is None or job.status == state.upper()) and (user is None or job.user == user)
        ]
        found.sort(key=lambda job: job.start_time or 0, reverse=True)
        return found[:limit]

    def get(self, job_id: str) -> Job:
        """Return one job."""
        return self._link.details(job_id)

    def attempts(self, job_id: str) -> Sequence[Attempt]:
        """Return the attempts of a job with their outcomes, in order."""
        return self.with_attempts(job_id).attempts

    def with_attempts(self, job_id: str) -> api.JobWithAttempts:
        """Return one job, with its limit, and its attempts in order."""
        return self._link.read(api.JobWithAttempts, "GET", f"/platform/jobs/{job_id}", job_id=job_id)

    def logs(self, job_id: str) -> str:
        """Return everything that the job has printed so far."""
        path = f"/api/jobs/{job_id}/logs"
        return self._link.read(api.Log, "GET", path, job_id=job_id, timeout=_LOG_TIMEOUT).logs or ""

    def follow(self, job_id: str) -> Iterator[str]:
        """Yield the job's log line by line until it ends, also while the gateway restarts (see `follow.follow`)."""
        return follow(self._link, job_id)

    def follow_text(self, job_id: str) -> Iterator[str]:
        """Yield the job's log as it is printed, with unfinished lines, until it ends (see `follow.follow_text`)."""
        return follow_text(self._link, job_id)

    def reports(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield the reports of the job's training as they are printed, until the job ends."""
        return (report for line in self.follow(job_id) if (report := report_in(line)) is not None)

    def lab(self, job_id: str) -> str:
        """Return an address of JupyterLab in a running job, which a browser can open once, within a minute.

        Raises:
            JobError: the job does not run.
            AccessError: it is not one's own.
        """
        return self._link.read(api.Page, "POST", f"/platform/jobs/{job_id}/lab", job_id=job_id).address

    def person(self) -> str:
        """Return the person whose token this client sends; with the shared one, the user of the settings."""
        return self._link.read(People, "GET", "/platform/people").you or self._settings.user

    def check_capacity(self, entry: Resources = _NOTHING, workers: WorkerGroup | None = None) -> Shortage | None:
        """Check whether a job can run on the nodes alive or recently seen.

        Args:
            entry: what the entry point reserves.
            workers: the group that the job's code will request.

        Returns:
            The resources that the job has to wait for; None if it fits now.

        Raises:
            CapacityError: it can never run; the message names the largest shape that fits.
            JobError: the gateway is older than this check, or the address is not a gateway's.
        """
        if workers is None and not entry.amounts():
            return None
        asked = {
            "entrypoint": _fields(entry),
            "workers": _fields(workers) if workers else None,
            "labels": self._settings.driver_labels,
        }
        # httpx cannot send NaN or Infinity; json can, and the gateway then names the field.
        found = self._link.read(Capacity, "POST", "/platform/capacity", content=json.dumps(asked)).shortage
        return None if found is None else Shortage(found.missing, tuple(found.users), tuple(found.unavailable))

    def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """Wait until the job has ended, successfully or not.

        Raises:
            JobError: it has not ended within `timeout_s` seconds; it continues. Or it is a schedule, which never ends.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        job = self._link.details_patiently(job_id, known=False)
        while job.status not in ENDED:
            if api.SCHEDULE in (job.metadata or {}):
                raise JobError(f"Job {job_id} is a schedule, which does not end by itself; wait for one of its jobs.")
            if deadline is not None and time.monotonic() > deadline:
                raise JobError(f"Job {job_id} is still {job.status} after {timeout_s:.0f} s; it continues, wait again.")
            time.sleep(connection.POLL_SECONDS)
            job = self._link.details_patiently(job_id)
        return job

    def stop(self, job_id: str) -> bool:
        """Ask a job to end: SIGTERM now, SIGKILL a few seconds later; False when it had ended before."""
        return self._link.read(api.Stopped, "POST", f"/api/jobs/{job_id}/stop", job_id=job_id).stopped

    def resume(self, job_id: str, limit_s: float | None = None) -> str:
        """Continue a job that was stopped or has failed: the same job and run, from its last checkpoint if it has one.

        It waits behind the jobs that wait already, and its allowed restarts are counted from the beginning.

        Args:
            job_id: the job.
            limit_s: new time limit of an attempt in seconds; None keeps the former one.

        Returns:
            What happens now, in a sentence.

        Raises:
            JobError: the job is open, has succeeded or does not exist, or its files were removed since it ended.
        """
        body = {} if limit_s is None else {"limit": durations.written(limit_s)}
        path = f"/platform/jobs/{job_id}/resume"
        return self._link.read(api.Resumed, "POST", path, job_id=job_id, json=body).message

    def delete(self, job_id: str) -> None:
        """Delete an ended job and its log; its checkpoints and its run stay.

        Raises:
            JobError: the job does not exist, or has not ended.
        """
        self._link.call("DELETE", f"/api/jobs/{job_id}", job_id=job_id)

    def is_up(self) -> bool:
        """Return whether the Jobs API answers; in Ray's head it starts after the dashboard itself."""
        try:
            return self._link.http.get("/api/jobs/").is_success
        except httpx.TransportError:
            return False

    def _upload(self, folder: Path, command: str) -> str:
        name, content = client_package.build(folder, command)
        self._link.call("PUT", f"/api/packages/gcs/{name}", content=content, timeout=_UPLOAD_TIMEOUT)
        return f"gcs://{name}"


def submit(entrypoint: str | Sequence[str], working_dir: Path | str, **options: Any) -> str:
    """Submit one job with the settings of this process; see `Jobs.submit`."""
    with Jobs() as jobs:
        return jobs.submit(entrypoint, working_dir, **options)


def check_capacity(entry: Resources = _NOTHING, workers: WorkerGroup | None = None) -> Shortage | None:
    """Check whether a job can run, with the settings of this process; see `Jobs.check_capacity`."""
    with Jobs() as jobs:
        return jobs.check_capacity(entry, workers)


def _fields(asked: Resources | WorkerGroup) -> dict[str, Any]:
    return {**vars(asked), "custom": dict(asked.custom)}
