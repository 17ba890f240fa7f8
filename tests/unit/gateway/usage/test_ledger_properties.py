"""The ledger after random steps, with kills of the gateway between and within transactions."""

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from held import BEGIN, Clock, rows
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
from sqlalchemy import event
from stored import database_in, do, ray, submitted

from mlplatform.api.usage import By
from mlplatform_gateway.jobs import store as jobs_store
from mlplatform_gateway.jobs.states import Outcome, Verdict
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.usage import ledger
from mlplatform_gateway.usage.ledger import Sample, Samples
from mlplatform_gateway.usage.report import UsageReader

IDS = ("a", "b", "c")
PEOPLE = ((None, None), ("ada", "vision"), ("ada", "audio"), ("bob", "vision"))
AMOUNTS = st.sampled_from((0, 0.25, 0.5, 1, 2.5, 8))
SECONDS = st.integers(0, 400_000).map(lambda milliseconds: milliseconds / 1000)
DIES = st.sampled_from((False, False, True))


class KilledError(Exception):
    """The gateway was killed before its transaction was committed."""


@dataclass
class Attempt:
    """An attempt as it really was; sums are in seconds times resources."""

    job: int
    job_id: str
    number: int
    person: str
    team: str | None
    begin: datetime
    granted: tuple[Fraction, Fraction]
    """GPUs and CPUs."""

    borrows: bool
    measured: datetime
    end: datetime | None = None
    excess: list[Fraction] = field(default_factory=lambda: [Fraction(0), Fraction(0)])
    """GPUs and CPUs."""

    borrowed: Fraction = Fraction(0)
    """GPUs."""

    outcome: Outcome | None = None

    def pass_until(self, moment: datetime, excess: tuple[Fraction, Fraction]) -> None:
        """Hold an excess from the last measurement until another one."""
        seconds = exact(max(moment - self.measured, timedelta()))
        self.excess = [total + more * seconds for total, more in zip(self.excess, excess, strict=True)]
        if self.borrows:
            self.borrowed += (self.granted[0] + excess[0]) * seconds
        self.measured = max(self.measured, moment)

    def held(self, since: datetime, until: datetime) -> list[Fraction]:
        """Return the sums of a window: all and lost GPUs and CPUs, and borrowed GPUs."""
        begin, last = max(self.begin, since), self.end or self.measured
        seconds = max(exact(min(self.end or until, until) - begin), Fraction(0))
        measured = max(exact(min(last, until) - begin), Fraction(0))
        part = measured / exact(last - self.begin) if measured else Fraction(0)
        sums = [amount * seconds + more * part for amount, more in zip(self.granted, self.excess, strict=True)]
        lost = self.outcome is Outcome.LOST
        return [*sums, *(total * lost for total in sums), self.borrowed * part]


def exact(span: timedelta) -> Fraction:
    """Seconds in whole milliseconds."""
    return Fraction(span // timedelta(milliseconds=1), 1000)


class Gateway(RuleBasedStateMachine):
    """Jobs of several people, whose attempts begin, are measured and end."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.database = database_in(self.folder)
        self.clock = Clock()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(jobs_store, "now", self.clock)
        self.waiting: dict[str, tuple[int, str, str | None, Fraction, Fraction]] = {}
        self.open: dict[str, Attempt] = {}
        self.ended: set[str] = set()
        self.numbers: dict[str, int] = {}
        self.attempts: list[Attempt] = []
        self.totals: dict[tuple[str, str], Any] = {}
        self.connect()

    def connect(self) -> None:
        self.store = JobStore(self.database)
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
    @rule(data=st.data(), dies=DIES, borrows=st.booleans())
    def begin(self, data: st.DataObject, dies: bool, borrows: bool) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.waiting.keys() - self.open.keys() - self.ended)))
        begun = self.step(dies, lambda: self.store.begin_attempt(job_id, borrows))
        sequence, person, team, *granted = self.waiting[job_id]
        self.numbers[job_id] += 1
        assert begun.number == self.numbers[job_id]
        who = (sequence, job_id, begun.number, person, team)
        attempt = Attempt(*who, self.clock.time, (granted[0], granted[1]), borrows, self.clock.time)
        self.open[job_id] = attempt
        self.attempts.append(attempt)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), dies=DIES, gpus=AMOUNTS, cpus=AMOUNTS, borrows=st.sampled_from((None, False, True)))
    def measure(self, data: st.DataObject, dies: bool, gpus: float, cpus: float, borrows: bool | None) -> None:
        """Measure some of the open attempts in one transaction."""
        found = [self.open[job_id] for job_id in data.draw(st.sets(st.sampled_from(sorted(self.open)), min_size=1))]
        samples = {(attempt.job, attempt.number): Sample(gpus, cpus, borrows) for attempt in found}
        self.step(dies, lambda: Samples(self.store.engine).add(self.clock.time, samples))
        for attempt in found:
            attempt.pass_until(self.clock.time, (Fraction(gpus), Fraction(cpus)))
            attempt.borrows = attempt.borrows if borrows is None else borrows

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
        if done.state.final:
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
        attempt.pass_until(attempt.end, (Fraction(0), Fraction(0)))

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
        held: dict[By, dict[Any, list[Fraction]]] = {by: defaultdict(lambda: [Fraction(0)] * 5) for by in By}
        for attempt in self.attempts:
            keys = {By.PERSON: attempt.person, By.TEAM: attempt.team, By.JOB: attempt.job}
            for by, key in keys.items():
                sums = zip(held[by][key], attempt.held(since, until), strict=True)
                held[by][key] = [total + amount for total, amount in sums]
        for by, name in ((By.PERSON, "person"), (By.TEAM, "team"), (By.JOB, "sequence")):
            found = {getattr(use, name): use for use in do(UsageReader(self.store.engine).read(by, since, until))}
            for key, totals in held[by].items():
                if use := found.get(key):
                    sums = (use.gpu_seconds, use.cpu_seconds, use.lost_gpu_seconds, use.lost_cpu_seconds)
                    # A nanosecond: what is measured is divided.
                    assert (*sums, use.borrowed_gpu_seconds) == pytest.approx(list(map(float, totals)), abs=1e-9)
                else:
                    assert not any(totals)
            assert found.keys() <= held[by].keys()

    def check_rows(self) -> None:
        """Compare each attempt's row with the time in which it ran, and with everything that was measured."""
        stored = {(row.job, row.attempt): row for row in rows(self.store)}
        assert stored.keys() == {(attempt.job, attempt.number) for attempt in self.attempts}
        for attempt in self.attempts:
            row = stored[attempt.job, attempt.number]
            assert (row.job_id, row.outcome) == (attempt.job_id, attempt.outcome)
            assert row.began == ledger.milliseconds(attempt.begin)
            assert row.ended == (attempt.end and ledger.milliseconds(attempt.end))
            assert row.measured == ledger.milliseconds(attempt.measured)
            for stored_sum, total in zip(
                (row.excess_gpu, row.excess_cpu, row.borrowed_gpu), (*attempt.excess, attempt.borrowed), strict=True
            ):
                assert Fraction(stored_sum, ledger.PARTS * 1000) == total

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


def examine(examples: int, steps: int, fixed: bool) -> None:
    limits = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=fixed,
        deadline=None,
        database=None,
        phases=(Phase.generate,),  # to shrink an example takes minutes; its steps are printed
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Gateway, settings=limits)


def test_ledger_loses_no_millisecond() -> None:
    examine(examples=8, steps=40, fixed=True)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_ledger_loses_no_millisecond_in_long_histories() -> None:
    examine(examples=100, steps=100, fixed=False)
