"""Selection of lessons: those that changed run, up to a bound, and a few others that the seed draws."""

from __future__ import annotations

from pathlib import Path

import pytest
import selection

SAME = dict.fromkeys("abcdefghij", "same")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A lesson that imports a module beside it, which reads a file; and files that neither uses."""
    (tmp_path / "lesson.py").write_text("def main():\n    import torch\n    from shared import size\n")
    (tmp_path / "shared.py").write_text('import sklearn.datasets\nsize = open("sizes.yaml").read()\n')
    (tmp_path / "sizes.yaml").write_text("1")
    (tmp_path / "other.py").write_text("import lesson\n")
    (tmp_path / "requirements.txt").write_text("# sizes.yaml\n")
    (tmp_path / "pins").write_text(
        "torch==2.0 \\\n    --hash=x\nscikit-learn==1.0\nray[train]==2.9 ; python_version > '3'\n"
    )
    return tmp_path / "lesson.py"


def test_script_uses_modules_and_files_beside_it(script: Path) -> None:
    assert [file.name for file in selection.used_files(script)] == ["lesson.py", "shared.py", "sizes.yaml"]


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("lesson.py", "main", "start"),
        ("shared.py", "size =", "size = 1 +"),
        ("sizes.yaml", "1", "2"),
        ("pins", "torch==2.0", "torch==2.1"),
        ("pins", "scikit-learn==1.0", "scikit-learn==1.1"),
    ],
)
def test_digest_changes_with_each_part(script: Path, file: str, old: str, new: str) -> None:
    pins, changed = script.with_name("pins"), script.with_name(file)
    before = selection.digest(script, "--epochs=1", pins=pins)
    changed.write_text(changed.read_text().replace(old, new))
    assert selection.digest(script, "--epochs=1", pins=pins) != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [("other.py", "lesson", "json"), ("pins", "==2.9", "==2.10"), ("requirements.txt", "#", "##")],
)
def test_digest_ignores_what_lesson_does_not_use(script: Path, file: str, old: str, new: str) -> None:
    pins, changed = script.with_name("pins"), script.with_name(file)
    before = selection.digest(script, pins=pins)
    changed.write_text(changed.read_text().replace(old, new))
    assert selection.digest(script, pins=pins) == before


def test_digest_depends_on_arguments(script: Path) -> None:
    pins = script.with_name("pins")
    assert selection.digest(script, "a", "bc", pins=pins) != selection.digest(script, "ab", "c", pins=pins)


def test_definition_includes_helpers_of_check(tmp_path: Path) -> None:
    module = tmp_path / "checks.py"
    module.write_text(
        "LIMIT = 3\nOTHER = 4\ndef small(left):\n    return left < LIMIT\n"
        "def check(left):\n    assert small(left)\ndef unused(left):\n    assert check\n"
    )
    found = selection.definition(module, "check")
    assert "LIMIT = 3" in found
    assert "def small" in found
    assert "OTHER" not in found
    assert "unused" not in found


def test_changed_lessons_run() -> None:
    chosen = selection.select({**SAME, "b": "new", "x": "first"}, [*SAME, "x"], [], SAME, share=2, seed="1")
    assert chosen.changed == ["b", "x"]
    assert chosen.left == []
    assert len(chosen.drawn) == 2
    assert not {"b", "x"} & set(chosen.drawn)


def test_changed_lesson_of_other_tier_is_left_out() -> None:
    chosen = selection.select({**SAME, "b": "new"}, own=["a"], long=[], passed=SAME, share=0, seed="1")
    assert chosen == selection.Selection([], [], [])


def test_long_lessons_run_only_after_change() -> None:
    long = list(SAME)[1:]
    chosen = selection.select({**SAME, "c": "new"}, SAME, long, SAME, share=5, seed="1")
    assert (chosen.changed, chosen.drawn) == (["c"], ["a"])


def test_number_of_changed_lessons_is_bounded() -> None:
    chosen = selection.select(dict.fromkeys(SAME, "new"), SAME, [], SAME, share=1, seed="1")
    assert len(chosen.changed) == selection.CHANGED_AT_MOST
    assert sorted(chosen.changed + chosen.left) == sorted(SAME)
    assert chosen.drawn == []


def test_seed_decides_draw() -> None:
    draws = [selection.select(SAME, SAME, [], SAME, share=2, seed=str(seed)) for seed in (*range(20), *range(20))]
    assert draws[:20] == draws[20:]
    drawn = {name for chosen in draws for name in chosen.drawn}
    assert len(drawn) > len(SAME) // 2


def test_passed_lesson_is_recorded_once(tmp_path: Path) -> None:
    file = tmp_path / "passed.txt"
    assert selection.read(file) == {}
    for name, value in (("b", "1"), ("a-epochs=1", "2"), ("gone", "3"), ("b", "4")):
        selection.record(name, value, known=["a-epochs=1", "b"], file=file)
    assert selection.read(file) == {"a-epochs=1": "2", "b": "4"}
    assert file.read_text() == "2  a-epochs=1\n4  b\n"


def test_recorded_lessons_have_valid_digests() -> None:
    assert all(len(value) == 16 and int(value, 16) >= 0 for value in selection.read().values())
