"""Rows of the benchmark: pairs of measurements, the confidence interval of their ratio, and its target."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient
    from rich.table import Table

Better = Literal["lower", "higher"]

CONFIDENCE = 0.95

STOP_CONFIDENCE = 0.99
"""Confidence of the interval that ends a series early. It is judged after each pair: with 95 %, a ratio exactly at its
target would be accepted in 12 % of the series of 5 to 40 pairs, with 99 % in 5 % (4,000 simulated series)."""

RESULT = "bench result"
"""Prefix of the log line with a job's measurements as JSON."""

ALONE, TOGETHER = "measured alone", "measured together"
"""Lines of the job `scripts/steps.py`."""


@dataclass(frozen=True)
class Row:
    """One quantity, measured alternately for us and for a baseline."""

    name: str
    unit: str
    pairs: Sequence[tuple[float, float]]
    """Ours and the baseline's, in `unit`."""

    target: float
    better: Better = "lower"
    """`lower`: the ratio must not exceed the target; `higher`: it must not fall below it."""

    speedup: bool = False
    """The ratio is the baseline's seconds divided by ours instead of ours divided by the baseline's."""

    @property
    def ratios(self) -> list[float]:
        return [theirs / ours if self.speedup else ours / theirs for ours, theirs in self.pairs]

    @property
    def result(self) -> Result:
        """Geometric mean of the ratios, and its interval, which needs two pairs or more; the worse end is judged."""
        ratio, half = _mean_and_half_width([math.log(value) for value in self.ratios], CONFIDENCE)
        if half is None:
            return Result(self.name, math.exp(ratio), None, None, self.target, None)
        low, high = math.exp(ratio - half), math.exp(ratio + half)
        holds = high <= self.target if self.better == "lower" else low >= self.target
        return Result(self.name, math.exp(ratio), low, high, self.target, holds)


@dataclass(frozen=True)
class Result:
    """Fields of a row in the results file."""

    name: str
    ratio: float
    low: float | None
    high: float | None
    target: float
    holds: bool | None
    """None for a single pair, which has no interval."""


_T = TypeVar("_T")


def interleaved(
    ours: Callable[[], _T],
    baseline: Callable[[], _T],
    count: int,
    until: Callable[[list[tuple[_T, _T]]], bool] | None = None,
) -> list[tuple[_T, _T]]:
    """Measure at most `count` pairs; `until` is called with the pairs after each, and true ends the series.

    The order within a pair alternates, so that a drift of the machine's speed cancels out.
    """
    pairs: list[tuple[_T, _T]] = []
    for index in range(count):
        if index % 2:
            theirs = baseline()
            pairs.append((ours(), theirs))
        else:
            pairs.append((ours(), baseline()))
        if until is not None and until(pairs):
            break
    return pairs


def is_decided(pairs: Sequence[tuple[float, float]], target: float) -> bool:
    """Return whether the interval of the ratio is on one side of the target; False for less than two pairs."""
    ratio, half = _mean_and_half_width([math.log(ours / theirs) for ours, theirs in pairs], STOP_CONFIDENCE)
    return half is not None and abs(ratio - math.log(target)) > half


def table(rows: Sequence[Row]) -> Table:
    """A table for people: geometric means of both sides, the ratio and its target."""
    from rich.table import Table

    shown = Table("", "ours", "baseline", "ratio", "95 % interval", "target", "holds", box=None)
    for row in rows:
        result = row.result
        ours, theirs = (_geometric_mean([pair[side] for pair in row.pairs]) for side in (0, 1))
        interval = "one pair gives none"
        if result.low is not None and result.high is not None:
            interval = f"{result.low:.3g} to {result.high:.3g}"
        shown.add_row(
            row.name,
            f"{ours:.4g} {row.unit}",
            f"{theirs:.4g} {row.unit}",
            f"{result.ratio:.4g}",
            f"{interval} ({len(row.pairs)})" if len(row.pairs) > 1 else interval,
            f"{'at most' if row.better == 'lower' else 'at least'} {row.target:g}",
            {True: "yes", False: "no", None: "not judged"}[result.holds],
        )
    return shown


def write(rows: Sequence[Row], file: Path) -> None:
    """Write the results as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(row.result) for row in rows], indent=2) + "\n")


def _mean_and_half_width(values: Sequence[float], confidence: float) -> tuple[float, float | None]:
    """Mean of a sample and half the width of its confidence interval (Student's t); None for a sample of one."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, None
    from scipy.stats import t

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, float(t.ppf((1 + confidence) / 2, count - 1)) * deviation / math.sqrt(count)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def authorized(file: str) -> dict[str, str]:
    """Return headers with the token in a file beside this one; none without the file, for the notebook's token."""
    path = Path(__file__).with_name(file)
    return {"Authorization": f"Bearer {path.read_text().strip()}"} if path.exists() else {}


def job_client(address: str, headers: Mapping[str, str] | None = None) -> JobSubmissionClient:
    """Return Ray's client of exactly this server: by itself, it prefers RAY_ADDRESS to the address that it is given."""
    from ray.job_submission import JobSubmissionClient

    os.environ.pop("RAY_ADDRESS", None)
    return JobSubmissionClient(address, headers=dict(headers or {}))
