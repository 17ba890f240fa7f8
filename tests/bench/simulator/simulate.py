"""Run the gateway's planner and four other policies over Philly's trace and generated ones, and compare them.

    python tests/bench/simulator/simulate.py                            # all samples and 30 generated workloads
    python tests/bench/simulator/simulate.py --sample 1 --policy ours kueue

Exits with 1 if our planner misses a target. `README.md` explains workloads, policies and measures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from engine import simulate
from measures import Measures, measure
from planning_time import WAITING, full_view, planning_ms
from policies import FifoEasy, FirstFit, KueueLike, Ours, Policy, SlurmLike
from report import plot, table, targets, write_json
from rich.console import Console
from workload import SAMPLES, SEEDS, Workload, alone, generated, philly

from mlplatform_gateway.queue.planner.queue import Rules

POLICIES: dict[str, type[Policy]] = {
    "ours": Ours,
    "first-fit": FirstFit,
    "fifo-easy": FifoEasy,
    "slurm": SlurmLike,
    "kueue": KueueLike,
}

RESULTS = Path(__file__).parents[3] / ".bench" / "simulator"


def compare(workload: Workload, policies: Sequence[Policy], rules: Rules) -> list[Measures]:
    """Measure all policies on a workload; rho compares with each team alone on its share under first fit."""
    teams = sorted({job.team for job in workload.jobs})
    baselines = {team: simulate(alone(workload, team), FirstFit(), rules) for team in teams}
    return [measure(simulate(workload, policy, rules), baselines) for policy in policies]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", nargs="*", type=int, choices=SAMPLES, help="samples of Philly's trace")
    parser.add_argument("--generated", nargs="*", type=int, metavar="SEED", help="generated workloads")
    parser.add_argument("--policy", nargs="+", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results.json and measures.svg")
    args = parser.parse_args()
    everything = args.sample is None and args.generated is None
    samples = list(SAMPLES) if everything or args.sample == [] else args.sample or []
    seeds = list(SEEDS) if everything or args.generated == [] else args.generated or []
    workloads = [*map(philly, samples), *map(generated, seeds)]

    console, rules = Console(width=150), Rules()
    rows: list[Measures] = []
    for made in workloads:
        console.print(f"{made.name}: {len(made.jobs):,} jobs, load {made.load:.2f}, {made.gpus:.0f} GPUs")
        rows += compare(made, [POLICIES[name]() for name in args.policy], rules)
    console.print(table(rows))
    view = full_view(workloads[0])
    planning = {policy.name: planning_ms(policy, view) for policy in (POLICIES[name]() for name in args.policy)}
    shown = ", ".join(f"{name} {times['warm']:.0f} ms ({times['cold']:.0f} ms)" for name, times in planning.items())
    console.print(f"CPU time of a plan for {WAITING:,} waiting jobs (for new objects), median: {shown}.")
    judged = targets(rows, planning, rules.grace_s)
    for name, found in judged.items():
        console.print(f"{name}:", *map(str, found), sep="\n  ", highlight=False)
    write_json(rows, planning, args.out / "results.json")
    plot(rows, args.out / "measures.svg")
    console.print(f"Written to {args.out}: results.json, measures.svg.", soft_wrap=True)
    return 0 if all(target.holds for found in judged.values() for target in found) else 1


if __name__ == "__main__":
    sys.exit(main())
