"""Run the gateway's planner and four other policies over Philly's trace and generated ones, and compare them.

    python tests/bench/simulator/simulate.py --sample 1 --policy all

Exits with 1 if our planner misses a target. `README.md` explains workloads, policies and measures.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from engine import Policy, Result, simulate
from measures import Measures, measure
from planning_time import WAITING, full_view, planning_ms
from policy_fifo_easy import FifoEasy
from policy_first_fit import FirstFit
from policy_kueue import KueueLike
from policy_ours import Ours
from policy_slurm import SlurmLike
from report import plot, table, targets, write_json
from rich.console import Console
from workload import SAMPLES, Workload, alone, first_days, generated, philly

from mlplatform.scheduling.queue import Rules

POLICIES: dict[str, type[Policy]] = {
    "ours": Ours,
    "first-fit": FirstFit,
    "fifo-easy": FifoEasy,
    "slurm": SlurmLike,
    "kueue": KueueLike,
}

RESULTS = Path(__file__).parents[3] / ".bench" / "simulator"


def compare(workload: Workload, policies: Sequence[Policy], rules: Rules) -> tuple[list[Result], list[Measures]]:
    """Run all policies on a workload, and each team alone on its share under first fit, today's queue."""
    baselines = {
        team: simulate(alone(workload, team), FirstFit(), rules) for team in sorted({job.team for job in workload.jobs})
    }
    results = [simulate(workload, policy, rules) for policy in policies]
    return results, [measure(result, baselines) for result in results]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sample", nargs="+", default=[], choices=[*map(str, SAMPLES), "all"], help="of Philly's trace"
    )
    parser.add_argument("--generated", nargs="+", type=int, default=[], metavar="SEED", help="generated traces")
    parser.add_argument("--days", type=float, default=math.inf, help="only jobs that arrive in the first days")
    parser.add_argument("--policy", nargs="+", default=["all"], choices=[*POLICIES, "all"])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results.json and plots")
    args = parser.parse_args()
    samples = list(SAMPLES) if "all" in args.sample else [int(sample) for sample in args.sample]
    workloads = [first_days(made, args.days) for made in (*map(philly, samples), *map(generated, args.generated))]
    if not workloads:
        parser.error("Nothing to simulate: set --sample or --generated.")
    names = list(POLICIES) if "all" in args.policy else args.policy

    console, rules = Console(width=170), Rules()
    results: list[Result] = []
    rows: list[Measures] = []
    for workload in workloads:
        console.print(
            f"{workload.name}: {len(workload.jobs):,} jobs, load {workload.load:.2f}, {workload.gpus:.0f} GPUs"
        )
        new, measured = compare(workload, [POLICIES[name]() for name in names], rules)
        results, rows = results + new, rows + measured
    console.print(table(rows))
    view = full_view(workloads[0])
    planning = {policy.name: planning_ms(policy, view) for policy in (POLICIES[name]() for name in names)}
    shown = ", ".join(f"{name} {times['warm']:.0f} ms ({times['cold']:.0f} ms)" for name, times in planning.items())
    console.print(f"CPU time of a plan for {WAITING:,} waiting jobs (for new objects), median: {shown}.")
    judged = targets(rows, planning, rules.grace_s)
    for name, found in judged.items():
        console.print(f"{name}:", *map(str, found), sep="\n  ", highlight=False)
    write_json(rows, planning, args.out / "results.json")
    paths = plot(results, rows, args.out)
    console.print(f"Written to {args.out}: results.json, {', '.join(path.name for path in paths)}.", soft_wrap=True)
    return 0 if all(target.holds for found in judged.values() for target in found) else 1


if __name__ == "__main__":
    sys.exit(main())
