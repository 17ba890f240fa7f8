"""guides.toml has an entry per feature of the guides, and what the entries name exists."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
KEYS = {"feature", "shown_by", "answered_in", "sentence", "gpu", "not_run", "in_part", "open"}

ENTRIES: dict[str, Any] = tomllib.loads((TESTS / "guides.toml").read_text())
GUIDES, PASSED_ON_GPU = ENTRIES.pop("guides"), ENTRIES.pop("passed_on_gpu")


class UnknownReferenceError(Exception):
    """An entry names a test, lesson or sentence that does not exist, or nothing at all."""


def check(entry: dict[str, Any], tests: Path = TESTS) -> None:
    """Check an entry of guides.toml.

    Raises:
        UnknownReferenceError: with what it names in vain.
    """
    if unknown := entry.keys() - KEYS:
        raise UnknownReferenceError(f"unknown key {', '.join(sorted(unknown))}")
    if not entry.keys() & {"shown_by", "answered_in", "gpu", "open"}:
        raise UnknownReferenceError("it has no test, no answer, no gpu and is not open")
    for reference in (*entry.get("shown_by", ()), *entry.get("gpu", ())):
        find(reference, tests)
    if "answered_in" in entry:
        # Unwrapped: also from comments.
        text = " ".join(re.sub(r"\n\s*#? ?", " ", (tests.parent / entry["answered_in"]).read_text()).split())
        if not entry.get("sentence") or entry["sentence"] not in text:
            raise UnknownReferenceError(f"{entry['answered_in']} lacks the sentence: {entry.get('sentence')!r}")


def find(reference: str, tests: Path) -> None:
    """Find the test FILE::TEST or FILE::TEST[CASE], or the lesson lessons/FILE::CHECK, in the source of the tests."""
    file, _, name = reference.partition("::")
    if not (tests / file).is_file():
        raise UnknownReferenceError(f"{reference}: tests/{file} does not exist")
    tree = ast.parse((tests / file).read_text())
    if file.startswith("lessons/"):
        if name not in {node.id for entry in lessons(tree) for node in ast.walk(entry) if isinstance(node, ast.Name)}:
            raise UnknownReferenceError(f"{reference}: none of its LESSONS has the check {name}")
        return
    name, _, case = name.removesuffix("]").partition("[")
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    if not found:
        raise UnknownReferenceError(f"{reference}: tests/{file} has no test {name}")
    constants = {str(node.value) for each in found[0].decorator_list for node in ast.walk(each) if is_constant(node)}
    if case and case not in constants:
        raise UnknownReferenceError(f"{name} has no case {case!r} that its decorator writes out")


def is_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant)


def lessons(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the lists LESSONS of a module."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LESSONS":
            yield node.value


def test_every_feature_has_one_entry() -> None:
    expected = [f"{guide}-{number:02}" for guide, of in GUIDES.items() for number in range(1, of["features"] + 1)]
    assert sorted(ENTRIES) == sorted(expected)
    assert len(expected) == 175


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_what_an_entry_names_exists(name: str) -> None:
    check(ENTRIES[name])


def test_feature_is_open_only_for_lack_of_hardware() -> None:
    assert [name for name, entry in ENTRIES.items() if "open" in entry or entry.get("gpu") == []] == ["003-77"]


def test_features_without_passed_gpu_test_say_so() -> None:
    for reference in PASSED_ON_GPU:
        find(reference, TESTS)
    expected = [name for name, entry in ENTRIES.items() if not set(entry.get("gpu", ())) <= set(PASSED_ON_GPU)]
    assert [name for name, entry in ENTRIES.items() if "not_run" in entry] == expected


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"shown_by": ["stack/test_none.py::test_a"]}, "tests/stack/test_none.py does not exist"),
        ({"shown_by": ["stack/test_a.py::test_b"]}, "tests/stack/test_a.py has no test test_b"),
        ({"gpu": ["stack/test_a.py::test_a[three]"]}, "test_a has no case 'three'"),
        ({"shown_by": ["lessons/c.py::gone"]}, "none of its LESSONS has the check gone"),
        ({"answered_in": "README.md", "sentence": "Built here."}, r"README\.md lacks the sentence"),
        ({}, "no test, no answer"),
        ({"shown": ["x"]}, "unknown key shown"),
    ],
)
def test_name_of_nothing_is_reported(entry: dict[str, Any], problem: str, tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    for path, text in (
        (
            tests / "stack/test_a.py",
            '@pytest.mark.parametrize("a", ["one", pytest.param("two")])\ndef test_a(a): pass\n',
        ),
        (tests / "lessons/c.py", "LESSONS = [Lesson('a.py', check)]\n"),
        (tmp_path / "README.md", "Not built\nhere: use the other.\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    check({"shown_by": ["stack/test_a.py::test_a[two]", "lessons/c.py::check"]}, tests)
    check({"answered_in": "README.md", "sentence": "Not built here: use the other."}, tests)
    with pytest.raises(UnknownReferenceError, match=problem):
        check(entry, tests)
