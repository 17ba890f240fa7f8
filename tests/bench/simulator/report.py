"""Report of simulations: a table, the targets, JSON and a plot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from measures import LARGE_GPUS, Measures
from rich.table import Table

OURS = "ours"

RHO = 1.05
COMPLETION = 1.05
PLANNING_MS = 50.0


@dataclass(frozen=True)
class Target:
    """A figure that the planner has to reach on each workload."""

    name: str
    value: float
    most: float
    unit: str

    @property
    def holds(self) -> bool:
        return self.value <= self.most * (1 + 1e-9)  # a difference of two times since 1970 has that error

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "MISSED"
        return f"{verdict}: {self.name} {self.value:.3g}{self.unit}, at most {self.most:.3g}{self.unit}"


def table(rows: Sequence[Measures]) -> Table:
    """Return a table with a row per workload and policy."""
    columns = (
        *("workload", "policy", "completion h", "in-share wait p99 s", "worst rho", "Jain"),
        *(f"wait p99 h, {LARGE_GPUS}+ GPUs", "preemptions", "lost GPU h", "of all work"),
    )
    shown = Table(title=f"{len({row.workload for row in rows})} workloads")
    for index, column in enumerate(columns):
        shown.add_column(column, justify="left" if index < 2 else "right")
    for row in rows:
        waits = (f"{row.completion_h:.2f}", f"{row.entitled_wait_p99_s:,.0f}")
        figures = map("{:.2f}".format, (row.worst_rho, row.jain, row.large_wait_p99_h))
        lost = (f"{row.preemptions:,}", f"{row.lost_gpu_h:.1f}", f"{row.lost_share:.2%}")
        shown.add_row(row.workload, row.policy, *waits, *figures, *lost)
    return shown


def targets(
    rows: Iterable[Measures], planning: Mapping[str, Mapping[str, float]], grace_s: float
) -> dict[str, list[Target]]:
    """Return the targets of each workload on which our planner and another policy ran, and that of a long queue.

    `planning` has the milliseconds that each policy takes to plan a long queue, `cold` and `warm`.
    """
    found = {}
    if OURS in planning:
        found["long queue"] = [Target("CPU time of a warm plan", planning[OURS]["warm"], PLANNING_MS, " ms")]
    for workload, group in groupby(sorted(rows, key=lambda row: row.workload), key=lambda row: row.workload):
        by_policy = {row.policy: row for row in group}
        ours = by_policy.pop(OURS, None)
        if ours is None or not by_policy:
            continue
        best = min(by_policy.values(), key=lambda row: row.completion_h)
        found[workload] = [
            Target("p99 of waits within a share", ours.entitled_wait_p99_s, grace_s, " s"),
            Target("worst rho", ours.worst_rho, RHO, ""),
            Target(f"completion relative to {best.policy}", ours.completion_h / best.completion_h, COMPLETION, ""),
        ]
    return found


def write_json(rows: Sequence[Measures], planning: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Write all measures, and the milliseconds that each policy takes to plan a long queue."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"measures": [asdict(row) for row in rows], "planning_ms": dict(planning)}, indent=2))


def plot(rows: Sequence[Measures], path: Path) -> None:
    """Draw the measures of each policy, with a point per workload."""
    # Matplotlib is in the environment of `make bench` only, and takes a second to import.
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    panels = {
        "mean completion, h": [row.completion_h for row in rows],
        "p99 wait within a share, s": [max(1.0, row.entitled_wait_p99_s) for row in rows],
        "worst rho (above 1: worse off than alone)": [row.worst_rho for row in rows],
        "Jain's index of slowdowns": [row.jain for row in rows],
        f"p99 wait of {LARGE_GPUS}+ GPUs, h": [row.large_wait_p99_h for row in rows],
        "lost GPU-hours": [row.lost_gpu_h for row in rows],
    }
    figure, axes = pyplot.subplots(2, 3, figsize=(14, 7), layout="constrained")
    for axis, (title, values) in zip(axes.flat, panels.items(), strict=True):
        axis.plot([row.policy for row in rows], values, "o", alpha=0.5)
        axis.set_title(title, fontsize=10)
        axis.set_yscale("log" if "p99 wait within" in title else "linear")
    axes[0, 2].axhline(1.0, color="black", linewidth=0.8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
