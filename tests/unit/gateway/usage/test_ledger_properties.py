"""The ledger after random steps, with kills of the gateway between and within transactions."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
from held import BEGIN, Clock, Terms, rows
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import create_engine, event
from stored import do, ray, submitted

from mlplatform.gateway.jobs import store as jobs_store
from mlplatform.gateway.jobs.states import Outcome, Verdict
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.migrations.upgrade import upgrade
from mlplatform.gateway.usage import ledger
from mlplatform.gateway.usage.ledger import Kind
from mlplatform.gateway.usage.report import By, Total, UsageReader

IDS = ("a", "b", "c")
PEOPLE = ((None, None), ("ada", "vision"), ("ada", "audio"), ("bob", "vision"))
AMOUNTS = st.sampled_from((0, 0.25, 0.5, 1, 2.5, 8))
SECONDS = st.integers(0, 400_000).map(lambda milliseconds: milliseconds / 1000)
DIES = st.sampled_from((False, False, True))


class KilledError(Exception):
    """The gateway was killed before its transaction was committed."""


@dataclass
class Span:
    """A time in which an attempt holds the same amounts on the same terms; half-open."""

    begin: datetime
    end: datetime | None
    kind: Kind
    gpus: Fraction
    cpus: Fraction


@dataclass
class Attempt:
    """An attempt as it really was."""

    job: int
    job_id: str
    number: int
    person: str
    team: str | None
    begin: datetime
    end: datetime | None = None
    spans: list[Span] = field(default_factory=list)
    outcome: Outcome | None = None


class Gateway(RuleBasedStateMachine):
    """Jobs of several people, whose attempts begin, change their terms and end."""

    empty: ClassVar[Path]
    """Database with all tables and no rows."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        shutil.copy(self.empty, self.folder / "gateway.db")
        self.clock = Clock()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(jobs_store, "now", self.clock)
        self.waiting: dict[str, tuple[int, str, str | None, Fraction, Fraction]] = {}
        self.open: dict[str, Attempt] = {}
        self.ended: set[str] = set()
        self.numbers: dict[str, int] = {}
        self.attempts: list[Attempt] = []
        self.totals: dict[tuple[str, str], Total] = {}
        self.connect()

    def connect(self) -> None:
        self.store = JobStore(f"sqlite:///{self.folder / 'gateway.db'}")
        event.listen(self.store.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.check_window(BEGIN, self.clock.time)
            self.store.engine.dispose()
            self.patch.undo()
            shutil.rmtree(self.folder)

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Kill the gateway at the end of the next transaction, before its commit; then start it again."""

        def kill(_: Any) -> None:
            raise KilledError

        event.listen(self.store.engine, "commit", kill)
        with pytest.raises(KilledError):
            yield
        self.restart()

    def step(self, dies: bool, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a transaction; if the gateway dies in it, again afterwards, as the gateway's control loop does."""
        if dies:
            with self.killed():
                do(work())
            self.clock.forward(3)
        return do(work())

    @rule()
    def restart(self) -> None:
        self.store.engine.dispose()
        self.connect()

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.clock.forward(seconds)

    @precondition(lambda self: len(self.numbers) < len(IDS))
    @rule(owner=st.sampled_from(PEOPLE), gpus=AMOUNTS, cpus=AMOUNTS, workers=st.integers(0, 3), worker_gpus=AMOUNTS)
    def submit(
        self, owner: tuple[str | None, str | None], gpus: float, cpus: float, workers: int, worker_gpus: float
    ) -> None:
        job_id = next(job_id for job_id in IDS if job_id not in self.numbers)
        group = {"workers": str(workers), "worker_gpus": str(worker_gpus), "worker_cpus": "1.5"} if workers else {}
        restarts = {"max_restarts_on_loss": "1000", "max_restarts_on_failure": "1"}
        metadata = {"user": "eve", **group, **restarts}
        request = {"entrypoint_num_gpus": gpus, "entrypoint_num_cpus": cpus}
        job = submitted(submission_id=job_id, metadata=metadata, **request)
        job.person, job.team = owner
        do(self.store.add(job))
        total = (Fraction(gpus) + workers * Fraction(worker_gpus), Fraction(cpus) + workers * Fraction(3, 2))
        self.waiting[job_id] = (job.sequence, owner[0] or "eve", owner[1], *total)
        self.numbers[job_id] = 0

    @precondition(lambda self: self.waiting.keys() - self.open.keys() - self.ended)
    @rule(data=st.data(), dies=DIES)
    def begin(self, data: st.DataObject, dies: bool) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.waiting.keys() - self.open.keys() - self.ended)))
        begun = self.step(dies, lambda: self.store.begin_attempt(job_id))
        sequence, person, team, gpus, cpus = self.waiting[job_id]
        self.numbers[job_id] += 1
        assert begun.number == self.numbers[job_id]
        attempt = Attempt(sequence, job_id, begun.number, person, team, self.clock.time)
        attempt.spans.append(Span(self.clock.time, None, Kind.SHARE, gpus, cpus))
        self.open[job_id] = attempt
        self.attempts.append(attempt)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), dies=DIES, kind=st.sampled_from((None, *Kind)), gpus=st.none() | AMOUNTS)
    def change(self, data: st.DataObject, dies: bool, kind: Kind | None, gpus: float | None) -> None:
        attempt = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        amounts = None if gpus is None else {"GPU": gpus, "CPU": 1.0}
        self.step(
            dies,
            lambda: Terms(self.store).change(attempt.job, attempt.number, self.clock.time, kind, amounts),
        )
        last = attempt.spans[-1]
        held = (last.gpus, last.cpus) if gpus is None else (Fraction(gpus), Fraction(1))
        last.end = self.clock.time
        attempt.spans.append(Span(self.clock.time, None, kind or last.kind, *held))

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        dies=DIES,
        outcome=st.sampled_from(Outcome),
        unnoticed=st.none() | SECONDS,
        dead_for=st.none() | SECONDS,
        ahead=st.sampled_from((0, 0, 7)),
    )
    def end(
        self,
        data: st.DataObject,
        dies: bool,
        outcome: Outcome,
        unnoticed: float | None,
        dead_for: float | None,
        ahead: float,
    ) -> None:
        """End an attempt whose process ended some time ago, by a clock that may be ahead."""
        job_id = data.draw(st.sampled_from(sorted(self.open)))
        attempt = self.open.pop(job_id)
        seen = self.clock.time
        by_ray = None if unnoticed is None else seen + timedelta(seconds=ahead - unnoticed)
        died = None if dead_for is None else seen - timedelta(seconds=dead_for)
        details = {**ray("FAILED"), "end_time": None if by_ray is None else ledger.milliseconds(by_ray)}
        verdict = Verdict(outcome, "It ended.")
        done = self.step(
            dies, lambda: self.store.end_attempt(job_id, attempt.number, verdict, details, False, died=died)
        )
        self.close(attempt, min(filter(None, (self.clock.time, by_ray, died))), outcome)
        if done.transition.state.final:
            self.ended.add(job_id)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), dies=DIES)
    def refuse(self, data: st.DataObject, dies: bool) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.open)))
        attempt = self.open.pop(job_id)
        self.step(dies, lambda: self.store.refuse(job_id, attempt.number, "Ray rejects the job."))
        self.close(attempt, self.clock.time, Outcome.FAILED)
        self.ended.add(job_id)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), dies=DIES)
    def delete(self, data: st.DataObject, dies: bool) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.ended)))
        self.step(dies, lambda: self.store.delete(job_id))
        self.ended.remove(job_id)
        del self.waiting[job_id], self.numbers[job_id]

    def close(self, attempt: Attempt, end: datetime, outcome: Outcome) -> None:
        """End what an attempt holds: nothing is held after the end, and nothing negative."""
        attempt.outcome, attempt.end = outcome, max(attempt.begin, end)
        for span in attempt.spans:
            span.end = max(span.begin, min(span.end or end, end))

    @precondition(lambda self: self.attempts)
    @rule(since=SECONDS, length=SECONDS)
    def report(self, since: float, length: float) -> None:
        begin = BEGIN + timedelta(seconds=since)
        self.check_window(begin, min(begin + timedelta(seconds=length), self.clock.time))

    @invariant()
    def no_time_is_lost(self) -> None:
        if hasattr(self, "folder"):
            self.check_rows()
            self.check_totals()

    def check_window(self, since: datetime, until: datetime) -> None:
        """Compare the sums of a window with the integrals of what was held in it."""
        held: dict[By, dict[Any, list[Fraction]]] = {by: defaultdict(lambda: [Fraction(0)] * 6) for by in By}
        for attempt in self.attempts:
            keys = {By.PERSON: attempt.person, By.TEAM: attempt.team, By.JOB: attempt.job}
            for span in attempt.spans:
                length = min(span.end or until, until) - max(span.begin, since)
                seconds = max(Fraction(length // timedelta(milliseconds=1), 1000), Fraction(0))
                lost = attempt.outcome is Outcome.LOST
                parts = (True, True, lost, lost, span.kind is Kind.BORROWED, span.kind is Kind.OVERTIME)
                amounts = (span.gpus, span.cpus, span.gpus, span.cpus, span.gpus, span.gpus)
                for by, key in keys.items():
                    held[by][key] = [
                        total + seconds * amount * part
                        for total, amount, part in zip(held[by][key], amounts, parts, strict=True)
                    ]
        for by, name in ((By.PERSON, "person"), (By.TEAM, "team"), (By.JOB, "sequence")):
            found = {getattr(use, name): use for use in do(UsageReader(self.store.engine).read(by, since, until))}
            sums = {
                key: [
                    *(use.gpu_seconds, use.cpu_seconds, use.lost_gpu_seconds, use.lost_cpu_seconds),
                    *(use.borrowed_gpu_seconds, use.overtime_gpu_seconds),
                ]
                for key, use in found.items()
            }
            expected = {key: [float(total) for total in totals] for key, totals in held[by].items()}
            assert {key: total for key, total in sums.items() if any(total)} == {
                key: total for key, total in expected.items() if any(total)
            }
            assert sums.keys() <= expected.keys()

    def check_rows(self) -> None:
        """Compare each attempt's rows with the time in which it ran: they are disjoint and cover it."""
        stored = defaultdict(list)
        for row in rows(self.store):
            stored[row.job, row.attempt].append(row)
        assert stored.keys() == {(attempt.job, attempt.number) for attempt in self.attempts}
        for attempt in self.attempts:
            found = stored[attempt.job, attempt.number]
            assert [row.n for row in found] == list(range(1, len(found) + 1))
            assert {row.job_id for row in found} == {attempt.job_id}
            assert {row.outcome for row in found} == {attempt.outcome}
            assert [row.ended is None for row in found] == [False] * (len(found) - 1) + [attempt.outcome is None]
            now = ledger.milliseconds(self.clock.time)
            ends = [now if row.ended is None else row.ended for row in found]
            filled = [(row.began, end) for row, end in zip(found, ends, strict=True) if end != row.began]
            assert all(end == begin for (_, end), (begin, _) in pairwise(filled))
            begin, end = map(ledger.milliseconds, (attempt.begin, attempt.end or self.clock.time))
            assert found[0].began == begin
            assert (filled[0][0], filled[-1][1]) == (begin, end) if filled else begin == end

    def check_totals(self) -> None:
        """Compare the counters for Prometheus with the previous ones: none decreases, whatever ended in the past."""
        found = {
            (total.person, total.team): total for total in do(UsageReader(self.store.engine).totals(self.clock.time))
        }
        for key, before in self.totals.items():
            after = found[key]
            assert after.gpu_seconds >= before.gpu_seconds
            assert after.cpu_seconds >= before.cpu_seconds
            assert after.lost_gpu_seconds >= before.lost_gpu_seconds
            assert after.lost_cpu_seconds >= before.lost_cpu_seconds
        self.totals = found


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> type[Gateway]:
    """The state machine with an empty database to begin with."""
    path = tmp_path_factory.mktemp("migrated") / "gateway.db"
    engine = create_engine(f"sqlite:///{path}")
    upgrade(engine)
    engine.dispose()
    Gateway.empty = path
    return Gateway


def examine(machine: type[Gateway], examples: int, steps: int, fixed: bool) -> None:
    limits = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=fixed,
        deadline=None,
        database=None,
        phases=(Phase.generate,),  # to shrink an example takes minutes; its steps are printed
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=limits)


def test_ledger_loses_no_millisecond(machine: type[Gateway]) -> None:
    examine(machine, examples=8, steps=40, fixed=True)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_ledger_loses_no_millisecond_in_long_histories(machine: type[Gateway]) -> None:
    examine(machine, examples=400, steps=100, fixed=False)
