"""Child runs of a hyperparameter search in MLflow: one per trial, which later attempts of the job rejoin."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlplatform.contract import TAG_ATTEMPT
from mlplatform.settings.job import settings
from mlplatform.storage import fence
from mlplatform.tracking import reported_runs
from mlplatform.tracking.identity import identity_tags
from mlplatform.tracking.metrics import FINAL, Point, RunSink
from mlplatform.tracking.params import MAX_CHARACTERS, new_params
from mlplatform.tracking.server import uri

if TYPE_CHECKING:
    from mlflow.entities import Run


TAG_PARENT = "mlflow.parentRunId"

TAG_TRIAL = "mlplatform.trial_id"

TAG_SEARCH = "mlplatform.search"

TAG_END = "mlplatform.trial_end"

COMPLETED = "completed"

EARLY_STOPPED = "early-stopped"

FAILED = "failed"

STOPPED = "stopped"
"""End of a trial whose whole search was stopped, by a signal or its time limit."""

STATUS = {COMPLETED: "FINISHED", EARLY_STOPPED: "FINISHED", FAILED: "FAILED", STOPPED: "KILLED"}
"""Status of the run after each end of its trial."""

_PARAMS = 100
"""Maximum number of parameters that MLflow accepts per request."""

_NAME_CHARACTERS = 200

_log = logging.getLogger(__name__)

Act = Callable[["TrialRuns"], None]
"""An update of a trial's run: a method of `TrialRuns` with its arguments."""


class TrialRuns:
    """Destination of a search's outbox; each update may be repeated after a failure.

    A replaced attempt of the job delivers nothing more.
    """

    def __init__(self, parent: str, search: str, tracking_uri: str | None) -> None:
        """Set up the destination.

        Args:
            parent: id of the job's run.
            search: name of the search within the job.
            tracking_uri: MLflow server; None means the process's own.
        """
        self.name = f"MLflow, for the trials of {search!r}"
        self._parent = parent
        self._search = search
        self._tracking_uri = tracking_uri
        self._sinks: dict[str, RunSink] = {}
        self._ids: dict[str, str] = {}
        self._waiting: defaultdict[str, list[Point]] = defaultdict(list)

    def open(self) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(self._tracking_uri)
        self._experiment = self._client.get_run(self._parent).info.experiment_id

    def send(self, items: Sequence[Act]) -> None:
        for act in items:
            fence.check(wait=False)
            self._unless_refused(act)
        for trial_id in self._sinks:
            self._flush(trial_id)

    def find(self, trial_id: str) -> Run | None:
        """Find the run of a trial; None if it does not exist yet."""
        tags = {TAG_PARENT: self._parent, TAG_SEARCH: self._search, TAG_TRIAL: trial_id}
        wanted = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in tags.items())
        found = self._client.search_runs([self._experiment], wanted, order_by=["attributes.start_time"], max_results=1)
        return found[0] if found else None

    def start(self, trial_id: str, title: str, params: Mapping[str, Any]) -> None:
        """Open the run of a trial, or rejoin it."""
        if trial_id in self._sinks:
            return
        # Also in a first attempt: the response to an earlier try of this request may have been lost.
        run = self.find(trial_id) or self._create(trial_id, title)
        run_id = run.info.run_id
        if run.info.status != "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
        if TAG_END in run.data.tags:
            self._client.delete_tag(run_id, TAG_END)
        self._client.set_tag(run_id, TAG_ATTEMPT, str(settings().attempt))
        if settings().is_own(self._tracking_uri or uri() or ""):
            reported_runs.report(run_id)
        sink = RunSink(run_id, self._tracking_uri)
        sink.open()
        # A failure repeats all of it; if MLflow rejects the parameters for good, the trial continues without them.
        self._unless_refused(lambda runs: runs._log_new_params(run, params))
        self._ids[trial_id], self._sinks[trial_id] = run_id, sink

    def report(self, trial_id: str, points: Sequence[Point]) -> None:
        """Collect points until the end of this delivery, or of the trial, so that one request carries many."""
        self._waiting[trial_id].extend(points)

    def mark(self, trial_id: str, end: str, error: str | None) -> None:
        """Record the end of a trial; its run stays open until `finish`."""
        self._flush(trial_id)
        run_id = self._ids[trial_id]
        if error:
            self._client.log_text(run_id, error, "traceback.txt")
        self._client.set_tag(run_id, TAG_END, end)

    def finish(self, trial_id: str, end: str, ended: int | None) -> None:
        """End the run of a trial; `ended` is in milliseconds since 1970, None means now."""
        self._flush(trial_id)
        self._client.set_terminated(self._ids[trial_id], STATUS[end], ended)

    def settle(self, trial_id: str, title: str, params: Mapping[str, Any], points: Sequence[Point], end: str) -> None:
        """End a run left open by a crash of an earlier attempt although its trial had ended."""
        run = self.find(trial_id)
        if run and run.info.status != "RUNNING":
            return
        end = run.data.tags.get(TAG_END, end) if run else end
        self.start(trial_id, title, params)
        self.report(trial_id, points)
        self.mark(trial_id, end, None)
        self.finish(trial_id, end, max((point.timestamp for point in points), default=0) or None)

    def _create(self, trial_id: str, title: str) -> Run:
        # MLflow's client, unlike `mlflow.start_run`, adds no tags itself.
        own = {TAG_PARENT: self._parent, TAG_SEARCH: self._search, TAG_TRIAL: trial_id}
        tags = {**identity_tags(settings()), **own}
        return self._client.create_run(self._experiment, tags=tags, run_name=title[:_NAME_CHARACTERS])

    def _log_new_params(self, run: Run, params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        new = new_params(params, run.data.params)
        if new.cut:
            _log.warning("MLflow stores %d characters of a parameter; cut: %s.", MAX_CHARACTERS, ", ".join(new.cut))
        values = [Param(name, value) for name, value in new.values.items()]
        for start in range(0, len(values), _PARAMS):
            self._client.log_batch(run.info.run_id, params=values[start : start + _PARAMS])

    def _flush(self, trial_id: str) -> None:
        if (points := self._waiting.get(trial_id)) and (sink := self._sinks.get(trial_id)):
            sink.send(points)
            self._waiting.pop(trial_id)

    def _unless_refused(self, act: Act) -> None:
        """Apply an update, unless MLflow rejects it for good: an exception would make the outbox repeat it."""
        from mlflow import MlflowException

        try:
            act(self)
        except KeyError as error:
            _log.warning("Trial %s has no run in MLflow, so an update of it is dropped.", error)
        except MlflowException as error:
            if error.error_code not in FINAL:
                raise
            _log.warning("MLflow rejects an update of a trial, which is dropped: %s", error)
