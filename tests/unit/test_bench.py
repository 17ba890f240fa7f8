import json
import math
from pathlib import Path

import bench
import pytest
from harness import Row, interleaved, is_decided, table, write
from node_memory import is_of_node
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


def test_series_ends_once_it_is_decided() -> None:
    ours = iter([1.0, 1.1, 1.0, 1.1, 1.0, 1.1])
    pairs = interleaved(lambda: next(ours), lambda: 1.0, 6, lambda pairs: is_decided(pairs, 2.0))
    assert pairs == [(1.0, 1.0), (1.1, 1.0), (1.0, 1.0)]


def test_undecided_series_takes_all_pairs() -> None:
    ours = iter([0.9, 1.1, 0.9, 1.1])
    assert len(interleaved(lambda: next(ours), lambda: 1.0, 4, lambda pairs: is_decided(pairs, 1.0))) == 4


@pytest.mark.parametrize(
    ("ours", "target", "decided"),
    [
        ([1.0], 2.0, False),
        ([1.0, 1.01, 1.0, 1.01], 1.1, True),
        ([1.0, 1.01, 1.0, 1.01], 0.9, True),
        ([1.0, 1.2, 1.0, 1.2], 1.1, False),
        ([1.2, 1.2], 1.2, False),
    ],
)
def test_series_is_decided_on_either_side_of_target(ours: list[float], target: float, decided: bool) -> None:
    assert is_decided([(one, 1.0) for one in ours], target) is decided


def test_stopping_early_asks_for_wider_interval_than_judging() -> None:
    """95 % of the interval are below the target, 99 % are not: another pair has to decide."""
    pairs = [(1.0, 1.0), (1.1, 1.0), (1.05, 1.0)]
    target = Row("", "", pairs, 1.0).result.high
    assert target is not None
    assert Row("", "", pairs, target * 1.001).result.holds
    assert not is_decided(pairs, target * 1.001)


def test_results_are_written_as_json_list(tmp_path: Path) -> None:
    write([Row("a", "s", [(1, 2)], 1.0), Row("b", "s", [(1, 1), (1, 1)], 1.0)], tmp_path / "new" / "results.json")
    found = json.loads((tmp_path / "new" / "results.json").read_text())
    assert [entry["name"] for entry in found] == ["a", "b"]
    assert all(list(entry) == ["name", "ratio", "low", "high", "target", "holds"] for entry in found)
    assert found[1]["holds"] is True


def test_readme_has_row_for_every_measurement() -> None:
    text = (Path(bench.__file__).parent / "README.md").read_text()
    assert [name for name in bench.MEASUREMENTS if f"\n| `{name}` |" not in text] == []


@pytest.mark.parametrize(
    ("words", "is_node"),
    [
        (["/opt/venv/lib/python3.13/site-packages/ray/core/src/ray/raylet/raylet", "--node-name=a"], True),
        (["/opt/venv/bin/python", "/opt/venv/bin/ray", "start", "--block"], True),
        (["/opt/venv/bin/python", "-u", "/opt/venv/lib/ray/dashboard/agent.py", "--port=1"], True),
        (["ray::RuntimeEnvAgent"], True),
        (["ray::RayTrainWorker"], False),
        (["/opt/venv/bin/python", "-u", "/opt/ray/default_worker.py", "--raylet-name=/tmp/ray/raylet"], False),
        (["/opt/venv/bin/python", "-m", "mlplatform_warm", "/tmp/warm"], False),
        ([""], False),
    ],
)
def test_memory_of_node_itself_is_left_out(words: list[str], is_node: bool) -> None:
    assert is_of_node(words) is is_node
