"""`make bench QUICK=1` on the stack under test: every row can be measured; speed is not judged."""

import json
import sys

from host import CHECKOUT, Stack, run

from mlplatform.settings.environment import environment

ROWS = {
    "warm-submit",
    "warm-submit-ray",
    "first-line",
    "batched-metrics",
    "checkpoint-upload",
    "trivial-fit",
    "tracked-training",
    "async-stall",
    "gateway-submit",
    "log-follow",
}


def test_every_row_is_measured(stack: Stack) -> None:
    results = CHECKOUT / ".bench" / "results.json"
    results.unlink(missing_ok=True)
    command = (sys.executable, "tests/bench/bench.py", "--root", str(stack.root), "--quick")
    print(run(*command, cwd=CHECKOUT, env={**environment(), "PYTHONPATH": "tests/stack"}).stdout)
    found = json.loads(results.read_text())
    assert {row["name"].partition(":")[0] for row in found} == ROWS
    assert all(set(row) == {"name", "ratio", "low", "high", "target", "holds"} for row in found)
    assert all(row["ratio"] > 0 for row in found)
