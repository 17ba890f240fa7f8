"""The table of the guides' features: complete, current, and naming only tests, lessons and sentences that exist."""

from __future__ import annotations

from pathlib import Path

import guides
import pytest

TOTAL = 175


@pytest.fixture
def tests_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of tests/."""
    monkeypatch.setattr(guides, "TESTS", tmp_path)
    monkeypatch.setattr(guides, "CHECKOUT", tmp_path)
    return tmp_path


def test_every_feature_has_one_entry() -> None:
    numbers, features = guides.load()
    expected = [f"{guide}-{number:02}" for guide, of in numbers.items() for number in range(1, of["features"] + 1)]
    assert [feature.name for feature in features] == sorted(expected)
    assert len(features) == TOTAL


def test_every_named_test_and_sentence_exists() -> None:
    problems = []
    for feature in guides.load()[1]:
        try:
            guides.row(feature)
        except guides.UnknownReferenceError as error:
            problems.append(str(error))
    assert problems == []


def test_table_is_current() -> None:
    readme = (guides.TESTS / "README.md").read_text()
    assert guides.written(readme) == readme, "tests/README.md is outdated: run `make format`"


def test_feature_is_open_only_for_lack_of_hardware() -> None:
    opened = [feature.name for feature in guides.load()[1] if feature.state in (guides.OPEN, guides.OPEN_ON_GPU)]
    assert opened == ["003-77"]


def test_features_without_passed_gpu_test_say_so() -> None:
    passed = guides.passed_on_gpu()
    for reference in passed:
        guides.proof(reference)
    expected = [each.name for each in guides.load()[1] if not set(each.gpu or ()) <= set(passed)]
    assert [each.name for each in guides.load()[1] if each.not_run] == expected


def test_gpu_test_that_has_not_run_leaves_feature_open(tests_folder: Path) -> None:
    write(tests_folder / "stack/test_a.py", "def test_plain(): pass\n")
    write(tests_folder / "gpu/test_b.py", "def test_device(): pass\n")
    entry = {"feature": "It works.", "shown_by": ["stack/test_a.py::test_plain"], "gpu": ["gpu/test_b.py::test_device"]}
    ran = guides.Feature.parse("000-01", entry)
    waits = guides.Feature.parse("000-01", {**entry, "not_run": "two GPUs"})
    assert (ran.state, waits.state) == (guides.GPU, guides.NOT_RUN)
    assert "**open**" not in guides.row(ran)
    assert "<br>**open**: not run yet, needs two GPUs |" in guides.row(waits)


def test_feature_is_as_frequent_as_its_least_frequent_test(tests_folder: Path) -> None:
    write(tests_folder / "stack/test_a.py", "def test_a(): pass\n@pytest.mark.soak\ndef test_b(): pass\n")
    both = ["stack/test_a.py::test_a", "stack/test_a.py::test_b"]
    feature = guides.Feature.parse("000-01", {"feature": "It works.", "shown_by": both})
    assert feature.state == guides.SOAK
    lacking = guides.Feature.parse("000-01", {"feature": "It works.", "shown_by": both[:1], "in_part": "not twice"})
    assert lacking.state == guides.IN_PART
    assert "**in part**: not twice" in guides.row(lacking)


@pytest.mark.parametrize(
    ("reference", "often"),
    [
        ("stack/test_a.py::test_plain", guides.EVERY_RUN),
        ("stack/test_a.py::test_long", guides.SOAK),
        ("stack/test_a.py::test_cases", guides.EVERY_RUN),
        ("stack/test_a.py::test_cases[one]", guides.EVERY_RUN),
        ("stack/test_a.py::test_cases[two]", guides.SOAK),
        ("stack/test_soak.py::test_all", guides.SOAK),
        ("stack/test_costly.py::test_one", guides.COSTLY),
        ("stack/test_costly.py::test_two", guides.SOAK),
        ("stack/test_a.py::test_rare", guides.LONG_COSTLY),
        ("gpu/test_b.py::test_device", guides.GPU),
        ("lessons/c.py::short", guides.LESSON),
        ("lessons/c.py::slow", guides.LONG_LESSON),
        ("lessons/c.py::made", guides.LESSON),
    ],
)
def test_frequency_is_read_from_source(tests_folder: Path, reference: str, often: str) -> None:
    write(
        tests_folder / "stack/test_a.py",
        "def test_plain(): pass\n"
        "@pytest.mark.timeout(9)\n@pytest.mark.soak\ndef test_long(): pass\n"
        '@pytest.mark.parametrize("a", ["one", pytest.param("two", marks=pytest.mark.soak)])\n'
        "def test_cases(a): pass\n"
        '@pytest.mark.costly("a.py", long=True)\ndef test_rare(): pass\n',
    )
    write(tests_folder / "stack/test_soak.py", "pytestmark = pytest.mark.soak\ndef test_all(): pass\n")
    write(
        tests_folder / "stack/test_costly.py",
        'pytestmark = pytest.mark.costly("a.py")\ndef test_one(): pass\n@pytest.mark.soak\ndef test_two(): pass\n',
    )
    write(tests_folder / "gpu/test_b.py", "def test_device(): pass\n")
    write(
        tests_folder / "lessons/c.py",
        'def lesson(which, check):\n    return Lesson("made/m.py", "Promise.", check)\n'
        'LESSONS = [Lesson("a/s.py", "Promise.", short), Lesson("a/l.py", "Promise.", slow, long=True),'
        ' lesson("x", made)]\n',
    )
    found = guides.proof(reference)
    assert (found.often, found.tier) == (
        often,
        {"lessons": "lesson"}.get(reference.split("/")[0], reference.split("/")[0]),
    )


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("stack/test_none.py::test_a", "tests/stack/test_none.py does not exist"),
        ("stack/test_a.py::test_b", "tests/stack/test_a.py has no test test_b"),
        ("stack/test_a.py::test_a[three]", "test_a has no case 'three'"),
        ("lessons/c.py::gone", "none of its LESSONS has the check gone"),
    ],
)
def test_unknown_reference_is_named(tests_folder: Path, reference: str, problem: str) -> None:
    write(tests_folder / "stack/test_a.py", "def test_a(): pass\n")
    write(tests_folder / "lessons/c.py", "LESSONS = []\n")
    with pytest.raises(guides.UnknownReferenceError, match=problem):
        guides.proof(reference)


def test_answer_must_be_in_its_file(tests_folder: Path) -> None:
    write(tests_folder / "README.md", "Not built\nhere: use the other.\n")
    answered = {"feature": "It is built.", "answered_in": "README.md"}
    found = guides.Feature.parse("000-01", {**answered, "sentence": "Not built here: use the other."})
    assert 'README.md): "Not built here: use the other."' in guides.row(found)
    with pytest.raises(guides.UnknownReferenceError, match=r"README\.md lacks the sentence"):
        guides.row(guides.Feature.parse("000-01", {**answered, "sentence": "Built here."}))


@pytest.mark.parametrize("entry", [{}, {"shown": ["x"]}])
def test_entry_that_settles_nothing_is_rejected(entry: dict[str, list[str]]) -> None:
    with pytest.raises(guides.UnknownReferenceError, match="000-01"):
        guides.row(guides.Feature.parse("000-01", {"feature": "It works.", **entry}))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
