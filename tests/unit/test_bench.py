import json
import math
from pathlib import Path

import pytest
from harness import Row, interleaved, table, write
from rich.console import Console


def test_interval_is_students_t_of_log_ratios() -> None:
    """Calculated by hand: logs 0 and ln 4, mean ln 2, deviation ln 4 / sqrt(2), t(0.975, 1) = 12.7062."""
    result = Row("a", "s", [(1, 1), (4, 1)], target=1).result
    half = 12.7062 * math.log(4) / math.sqrt(2) / math.sqrt(2)
    assert result.ratio == pytest.approx(2)
    assert result.low == pytest.approx(2 * math.exp(-half), rel=1e-4)
    assert result.high == pytest.approx(2 * math.exp(half), rel=1e-4)


def test_equal_pairs_give_zero_width_interval() -> None:
    result = Row("a", "s", [(3, 2), (6, 4), (1.5, 1)], target=1.5).result
    assert (result.low, result.high) == (pytest.approx(1.5), pytest.approx(1.5))


@pytest.mark.parametrize(
    ("better", "target", "holds"),
    [("lower", 1.2, True), ("lower", 1.0, False), ("higher", 0.8, True), ("higher", 1.0, False)],
)
def test_worse_end_of_interval_is_judged(better: str, target: float, holds: bool) -> None:
    """The ratio is within 10 % of 1, so a target of exactly 1 is not shown to hold."""
    row = Row("a", "s", [(1.02, 1), (1, 1.02), (1.02, 1), (1, 1.02)], target, better)
    assert row.result.ratio == pytest.approx(1)
    assert row.result.holds is holds


def test_speedup_is_baseline_divided_by_ours() -> None:
    result = Row("a", "s", [(5, 100), (4, 100)], 20, "higher", speedup=True).result
    assert result.ratio == pytest.approx(math.sqrt(20 * 25))


def test_one_pair_is_not_judged() -> None:
    row = Row("a", "s", [(1, 2)], target=1)
    assert (row.result.low, row.result.high, row.result.holds) == (None, None, None)
    console = Console(record=True, width=170)
    console.print(table([row]))
    assert "one pair gives none" in console.export_text()


def test_measurement_order_alternates() -> None:
    order: list[str] = []
    pairs = interleaved(lambda: order.append("ours") or 1.0, lambda: order.append("theirs") or 2.0, 3)
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert pairs == [(1.0, 2.0)] * 3


def test_results_are_written_as_json_list(tmp_path: Path) -> None:
    write([Row("a", "s", [(1, 2)], 1.0), Row("b", "s", [(1, 1), (1, 1)], 1.0)], tmp_path / "new" / "results.json")
    found = json.loads((tmp_path / "new" / "results.json").read_text())
    assert [entry["name"] for entry in found] == ["a", "b"]
    assert all(list(entry) == ["name", "ratio", "low", "high", "target", "holds"] for entry in found)
    assert found[1]["holds"] is True
