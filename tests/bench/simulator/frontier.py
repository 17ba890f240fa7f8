"""Draw what the wait after which jobs are overdue trades: mean completion against the waits of large jobs.

    python tests/bench/simulator/frontier.py --sample 3 --generated 105 110

Runs the planner with several `OVERDUE_SECONDS`, and the other policies once. Both figures are divided by those of the
Kueue-like policy, and averaged over the workloads; a point of the planner that breaks a promise is hollow.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from measures import Measures
from policies import FifoEasy, FirstFit, KueueLike, Ours, SlurmLike
from report import RHO
from simulate import compare
from workload import HOUR, SAMPLES, generated, philly

from mlplatform_gateway.queue.planner.queue import Rules

OVERDUE_H = (24, 72, 288)

PICTURE = Path(__file__).with_name("frontier.png")


def ratios(rows: list[Measures], bases: list[Measures]) -> tuple[float, float]:
    """Return mean completion and 99th percentile of large jobs' waits, relative to others on the same workloads."""
    completion = statistics.mean(row.completion_h / base.completion_h for row, base in zip(rows, bases, strict=True))
    large = [row.large_wait_p99_h / base.large_wait_p99_h for row, base in zip(rows, bases, strict=True)]
    return completion, statistics.mean(large)


def keeps_promise(rows: list[Measures]) -> bool:
    return all(row.entitled_wait_p99_s <= Rules().grace_s + 1 and row.worst_rho <= RHO for row in rows)


def draw(points: dict[str, tuple[float, float, bool]], names: list[str]) -> None:
    """Draw the points; labels of the planner's are hours."""
    import matplotlib as mpl  # takes a second to import

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 5), layout="constrained")
    for name, (completion, large, kept) in points.items():
        colour = "C0" if name.endswith(" h") else "C1"
        axis.plot(completion, large, "o", color=colour, fillstyle="full" if kept else "none")
        axis.annotate(name, (completion, large), textcoords="offset points", xytext=(6, 4))
    axis.axhline(1, color="grey", linewidth=0.7)
    axis.set_xlabel("mean completion, of Kueue-like's")
    axis.set_ylabel("99th percentile of waits of 8+ GPUs, of Kueue-like's")
    axis.set_title("Means over " + ", ".join(names) + "; hollow: a promise is broken", fontsize=9)
    figure.savefig(PICTURE, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", nargs="*", type=int, choices=SAMPLES, default=[])
    parser.add_argument("--generated", nargs="*", type=int, default=[105, 110])
    args = parser.parse_args()
    workloads = [*map(philly, args.sample), *map(generated, args.generated)]
    rows: dict[str, list[Measures]] = {}
    for workload in workloads:
        for row in compare(workload, [KueueLike(), FirstFit(), FifoEasy(), SlurmLike()], Rules()):
            rows.setdefault(row.policy, []).append(row)
        for hours in OVERDUE_H:
            (row,) = compare(workload, [Ours()], Rules(overdue_s=hours * HOUR))
            rows.setdefault(f"ours, {hours} h", []).append(row)
    points = {name: (*ratios(found, rows[KueueLike.name]), keeps_promise(found)) for name, found in rows.items()}
    for name, (completion, large, kept) in points.items():
        print(f"{name}: completion {completion:.2f}, large jobs {large:.2f}, {'kept' if kept else 'broken'}")
    draw(points, [workload.name for workload in workloads])


if __name__ == "__main__":
    main()
