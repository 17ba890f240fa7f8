"""`make bench QUICK=1` on the stack under test: every row can be measured; speed is not judged."""

import json
import sys

import pytest
from host import CHECKOUT, Stack, run

from mlplatform.settings.environment import environment

ROWS = {
    "warm-submit": {"warm-submit", "warm-submit-ray"},
    "infeasible": {"infeasible"},
    "first-line": {"first-line"},
    "first-line-warm": {"first-line-warm", "first-line-cold"},
    "trivial-fit": {"trivial-fit"},
    "open-run": {"open-run"},
    "list-jobs": {"list-jobs"},
    "gateway": {"gateway-submit", "log-follow"},
    "batched-metrics": {"batched-metrics"},
    "checkpoint-upload": {"checkpoint-upload"},
    "training": {"tracked-training", "tracked-training-cpu", "async-stall"},
    "burst": {"burst", "burst-accepted"},
    "dev": {"dev-page", "dev-page-cold", "dev-prompt", "dev-prompt-cold", "dev-connection"},
    "memory": {"memory"},
}
"""Rows of each measurement; with --quick, the others have none."""


@pytest.mark.nightly
def test_every_row_is_measured(stack: Stack) -> None:
    results = CHECKOUT / ".bench" / "results.json"
    results.unlink(missing_ok=True)
    command = (sys.executable, "tests/bench/bench.py", "--root", str(stack.root), "--quick", "--rows", *ROWS)
    print(run(*command, cwd=CHECKOUT, env={**environment(), "PYTHONPATH": "tests/stack"}).stdout)
    found = json.loads(results.read_text())
    assert {row["name"].partition(":")[0] for row in found} == set().union(*ROWS.values())
    assert all(set(row) == {"name", "ratio", "low", "high", "target", "holds"} for row in found)
    assert all(row["ratio"] > 0 for row in found)
