"""Table of the guides' features in tests/README.md: the test that shows each, its tier, and how often it runs.

`make format` writes the table from guides.toml; `unit/test_guides.py` fails if one of the two is outdated. Tiers and
frequencies are read from the tests' source, because importing the tests needs torch, Ray and MLflow. Standard library
only.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
CHECKOUT = TESTS.parent
BEGIN, END = "<!-- Begin of the table that guides.py writes -->", "<!-- End of the table that guides.py writes -->"

EVERY_RUN = "every CI run"
COSTLY = "when its code changes, else drawn at random"
LONG_COSTLY = "when its code changes"
LESSON = "when its lesson changes, else drawn at random"
LONG_LESSON = "when its lesson changes"
SOAK = "`make soak`"
GPU = "on a machine with a GPU"
OFTENEST_FIRST = (EVERY_RUN, COSTLY, LESSON, LONG_COSTLY, LONG_LESSON, SOAK, GPU)
IN_PART = "in part"
ANSWERED, OPEN_ON_GPU, OPEN = "answered by a sentence", "open, because they need a GPU", "open"
NOT_RUN = "open, because their tests for GPUs have not run yet"
STATES = (*OFTENEST_FIRST, IN_PART, ANSWERED, NOT_RUN, OPEN_ON_GPU, OPEN)


class UnknownReferenceError(Exception):
    """A test, lesson or sentence that guides.toml names and that does not exist."""


@dataclass(frozen=True)
class Proof:
    """A test that shows a feature, or the check of a lesson."""

    shown: str
    tier: str
    often: str


@dataclass(frozen=True)
class Feature:
    """An entry of guides.toml.

    Attributes:
        name: guide and number, such as "003-17".
        feature: what the guide teaches.
        shown_by: references to the tests that assert it: FILE::TEST below tests/, with [PARAMETER] for one case of a
            parametrized test; for lessons, lessons/FILE::CHECK with the name of the function that checks the lesson.
        answered_in: file with the sentence that says why not, and what to use instead.
        sentence: that sentence; it may be wrapped differently in the file.
        gpu: references to the tests in gpu/ that show the rest on a GPU; empty if there is none; None if it needs none.
        not_run: what the tests in `gpu` need, such as "two GPUs", while one of them has not passed on a GPU yet; empty
            if all have.
        lacks: the part that its tests do not show, or that its sentence takes back; empty if there is none.
        missing: what is neither shown nor answered, in a word; empty if nothing is.
    """

    name: str
    feature: str
    shown_by: tuple[str, ...] = ()
    answered_in: str = ""
    sentence: str = ""
    gpu: tuple[str, ...] | None = None
    not_run: str = ""
    lacks: str = ""
    missing: str = ""

    @classmethod
    def parse(cls, name: str, entry: dict[str, Any]) -> Feature:
        known = {"feature", "shown_by", "answered_in", "sentence", "gpu", "not_run", "in_part", "open"}
        if unknown := entry.keys() - known:
            raise UnknownReferenceError(f"guides.toml: {name} has the unknown key {', '.join(sorted(unknown))}")
        gpu = entry.get("gpu")
        return cls(
            name,
            entry["feature"],
            tuple(entry.get("shown_by", ())),
            entry.get("answered_in", ""),
            entry.get("sentence", ""),
            None if gpu is None else tuple(gpu),
            entry.get("not_run", ""),
            entry.get("in_part", ""),
            entry.get("open", ""),
        )

    @property
    def proofs(self) -> list[Proof]:
        return [proof(reference) for reference in (*self.shown_by, *(self.gpu or ()))]

    @property
    def state(self) -> str:
        """One of STATES: by its least frequent test, as it takes all of them to show the whole feature."""
        if self.missing:
            return OPEN
        if self.not_run:
            return NOT_RUN
        if self.gpu == ():
            return OPEN_ON_GPU
        if self.lacks:
            return IN_PART
        return max((proof.often for proof in self.proofs), key=OFTENEST_FIRST.index, default=ANSWERED)


def load(file: Path = TESTS / "guides.toml") -> tuple[dict[str, Any], list[Feature]]:
    """Guides by number, and all features in order."""
    entries = tomllib.loads(file.read_text())
    guides = entries.pop("guides")
    del entries["passed_on_gpu"]
    return guides, [Feature.parse(name, entry) for name, entry in sorted(entries.items())]


def passed_on_gpu(file: Path = TESTS / "guides.toml") -> list[str]:
    """References to the tests in gpu/ that have passed on a GPU."""
    return list(tomllib.loads(file.read_text())["passed_on_gpu"])


def proof(reference: str) -> Proof:
    """Look up a reference of `shown_by` or `gpu`.

    Raises:
        UnknownReferenceError: the test or lesson does not exist.
    """
    file, _, name = reference.partition("::")
    path = TESTS / file
    if not path.is_file():
        raise UnknownReferenceError(f"{reference}: tests/{file} does not exist")
    if file.startswith("lessons/"):
        return lesson(reference, parsed(path), name)
    name, _, parameter = name.removesuffix("]").partition("[")
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            marks = [*node.decorator_list, *module_marks(parsed(path))]
            tier = file.partition("/")[0]
            soak = is_marked(marks) or is_soak_case(node, parameter)
            often = GPU if tier == "gpu" else SOAK if soak else costly_often(marks)
            return Proof(f"`{reference}`", tier, often)
    raise UnknownReferenceError(f"{reference}: tests/{file} has no test {name}")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_marked(nodes: list[ast.expr]) -> bool:
    """Return whether one of the decorators or marks is the mark `soak`, with the files that it covers or without."""
    return any(ast.unparse(getattr(node, "func", node)) == "pytest.mark.soak" for node in nodes)


def costly_often(nodes: list[ast.expr]) -> str:
    """Return how often a test with these decorators or marks runs; one that is costly and long is never drawn."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.costly"]
    long = any(word.arg == "long" for call in calls for word in call.keywords)
    return LONG_COSTLY if long else COSTLY if calls else EVERY_RUN


def module_marks(tree: ast.Module) -> list[ast.expr]:
    """Return the marks in `pytestmark` of the module."""
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]
    ]
    return [node for value in values for node in (value, *getattr(value, "elts", []))]


def is_soak_case(test: ast.FunctionDef, parameter: str) -> bool:
    """Return whether a case of a parametrized test is marked `soak`; without a parameter, whether all cases are.

    Raises:
        UnknownReferenceError: no case is written out with this value.
    """
    for decorator in test.decorator_list:
        if not (isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.parametrize"):
            continue
        cases = dict(case(node) for node in getattr(decorator.args[1], "elts", []))
        if parameter in cases:
            return cases[parameter]
        if not parameter and cases:
            return all(cases.values())
    if parameter:
        raise UnknownReferenceError(f"{test.name} has no case {parameter!r} that its decorator writes out")
    return False


def case(node: ast.expr) -> tuple[str, bool]:
    """Value of a case, and whether it is marked `soak`: "main", or pytest.param("tune", marks=pytest.mark.soak)."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.param":
        return case(node.args[0])[0], is_marked([word.value for word in node.keywords])
    return str(node.value if isinstance(node, ast.Constant) else ast.unparse(node)), False


def lesson(reference: str, tree: ast.Module, check: str) -> Proof:
    """Find the lesson with this check, also if a function of the module makes it, as `tracker_lesson` does.

    Raises:
        UnknownReferenceError: the module's LESSONS have no such check.
    """
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for entry in lessons_of(tree):
        if check not in {node.id for node in ast.walk(entry) if isinstance(node, ast.Name)}:
            continue
        made = functions.get(ast.unparse(entry.func), entry)
        nodes = [*ast.walk(made), *ast.walk(entry)]
        scripts = [node.value for node in nodes if isinstance(node, ast.Constant) and str(node.value).endswith(".py")]
        long = any(isinstance(node, ast.keyword) and node.arg == "long" for node in nodes)
        return Proof(f"`jobs/{scripts[0]}`, `{reference}`", "lesson", LONG_LESSON if long else LESSON)
    raise UnknownReferenceError(f"{reference}: none of its LESSONS has the check {check}")


def lessons_of(tree: ast.Module) -> Iterator[ast.Call]:
    """Entries of the list LESSONS of a module."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LESSONS":
            yield from (entry for entry in getattr(node.value, "elts", []) if isinstance(entry, ast.Call))


def answer(feature: Feature) -> str:
    """Quote the sentence that answers a feature, with a link to its file.

    Raises:
        UnknownReferenceError: the file does not contain the sentence.
    """
    file = CHECKOUT / feature.answered_in
    if not file.is_file():
        raise UnknownReferenceError(f"{feature.name}: {feature.answered_in} does not exist")
    # Unwrapped: also from comments.
    text = " ".join(re.sub(r"\n\s*#? ?", " ", file.read_text()).split())
    if not feature.sentence or feature.sentence not in text:
        raise UnknownReferenceError(f"{feature.name}: {feature.answered_in} lacks the sentence: {feature.sentence!r}")
    return f'[{feature.answered_in}](../{feature.answered_in}): "{feature.sentence}"'


def row(feature: Feature) -> str:
    """A feature's line of the table; lines of a cell belong together from left to right."""
    proofs = feature.proofs
    lines = [(proof.shown, proof.tier, proof.often) for proof in proofs]
    if feature.answered_in:
        lines.append((answer(feature), "answer", ""))
    if feature.gpu == ():
        lines.append(("**open**: needs a GPU", "gpu", ""))
    if feature.not_run:
        lines.append((f"**open**: not run yet, needs {feature.not_run}", "gpu", ""))
    if feature.lacks:
        lines.append((f"**in part**: {feature.lacks}", "", ""))
    if feature.missing:
        lines.append((f"**open**: {feature.missing}", "", ""))
    if not lines:
        raise UnknownReferenceError(f"guides.toml: {feature.name} has no test, no answer, no gpu and is not open")
    cells = ["<br>".join(cell) for cell in zip(*lines, strict=True)]
    return f"| {feature.name} | {feature.feature} | {' | '.join(cells)} |"


def table() -> str:
    """The text between the markers: a summary and one table with all features."""
    guides, features = load()
    states = Counter(feature.state for feature in features)
    settled = "; ".join(f"{states[state]} {state}" for state in STATES if states[state])
    titles = [f"{number} is {guide['title']}" for number, guide in sorted(guides.items())]
    return "\n".join(
        [
            f"{len(features)} features of {len(guides)} guides ({'; '.join(titles)}), "
            f"by the least frequent of the tests that show a feature together: {settled}.",
            "",
            "| id | feature | shown by | tier | how often |",
            "|---|---|---|---|---|",
            *map(row, features),
        ]
    )


def written(readme: str) -> str:
    """Return a README with the current table between its markers."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> int:
    readme = TESTS / "README.md"
    try:
        readme.write_text(written(readme.read_text()))
    except UnknownReferenceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
