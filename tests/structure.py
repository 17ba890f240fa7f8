"""Check the structure, the language and the budgets that CONTRIBUTING.md asks for; `make style` runs it.

Reads the files that git tracks, prints the budgets and one line per problem. Needs the light environment.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from typer.main import get_command

from mlplatform.cli.app import app
from mlplatform_stack.secrets_folder import FILES

ROOT = Path(__file__).parents[1]
MODULE_LINES = 400

TEST_LINES = 500
"""Test modules may be longer: each test repeats its set-up."""

TEST_NAME_WORDS = 10

CLASS_LINES = 250
LIBRARY = "platform/"
DOCUMENTS = (".md", ".yaml", ".yml", ".sh", ".ini", ".example", "Dockerfile", "Makefile")

HEADLESS = re.compile(r"(What|Whether|How|Where|Who)\b")
"""A docstring begins with a noun phrase or an imperative instead."""


class Budget(NamedTuple):
    """A size with an upper bound, which each removal lowers towards the goal."""

    what: str
    bound: int
    goal: int


BUDGETS = [
    Budget("lines of mlplatform", 16_670, 12_000),
    Budget("lines of the gateway", 17_800, 14_000),
    Budget("lines of the stack", 6_870, 6_500),
    Budget("lines of warm start", 2_710, 2_400),
    Budget("lines of tests and their data", 56_600, 50_000),
    Budget("settings in .env.example", 69, 70),
    Budget("files in secrets/", 34, 32),
    Budget("verbs of make", 37, 38),
    Budget("commands of mlplatform", 69, 60),
    Budget("bytes of Markdown", 114_500, 110_000),
]
"""A commit that raises a bound says why."""


class Word(NamedTuple):
    """An entry of the wordlist in CONTRIBUTING.md, which has the first two fields in a row of its table."""

    avoid: str
    write: str
    pattern: str


WORDS = [
    Word("away (of a service)", "unavailable, down", r"(?<!right\x20)\baway\b"),
    Word("anew", "again", r"\banew\b"),
    Word("for ever", "forever, indefinitely", r"\bfor ever\b"),
    Word("is no X, are no X", "is not an X", r"(?<![Tt]here\x20)\b(is|are) no (?!longer\b|more\b|fewer\b)[a-z]+"),
    Word("said, told", "reported, logged, set", r"\b(said|told)\b"),
    Word("brings, brought", "uploads, installs, ships", r"\b(brings|brought)\b"),
    Word("lies, lie, lay", "is stored", r"\b(lies|lie|lay)\b"),
    Word("goes on, go on", "continues", r"\b(goes|go|going|went) on\b(?! (the|a|this|each|every)\b)"),
    Word("has come", "arrived, was received", r"\b(has|have|had) come\b"),
    Word("lets in", "accepts", r"\blets? in\b"),
    Word("knows of", "has, records", r"\b(know|knows) of\b"),
    Word("thereof, therein", "of it, in it", r"\b(thereof|therein)\b"),
    Word("a run a trial", "one run per trial", r"\b(a|an|one) \w+ a (trial|node|worker|rank|job|report|process|fit)\b"),
    Word("log carrier", "log shipper", r"\blog[- ]carrier\b"),
    Word("the door", "the gateway's authentication", r"\bthe door\b"),
]


def tracked() -> list[Path]:
    """Files of the checkout, those that are not yet added included."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in sorted(filter(None, listed.split("\0"))) if (path := ROOT / name).is_file()]


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Docstrings of a module, its classes and functions, and the strings below assignments that document them."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for position, statement in enumerate(body):
            value = statement.value if isinstance(statement, ast.Expr) else None
            if not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
                continue
            if position == 0 or isinstance(body[position - 1], ast.Assign | ast.AnnAssign):
                yield value


def headless(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings whose first line begins with a question word."""
    for docstring in docstrings(tree):
        if found := HEADLESS.match(str(docstring.value).strip()):
            yield docstring.lineno, f"docstring begins with {found[1]!r}: use a noun phrase or an imperative"


def too_long(tree: ast.Module, lines: int, in_library: bool) -> Iterator[tuple[int, str]]:
    """The module or classes of it with more lines than one reads at a time."""
    limit = MODULE_LINES if in_library else TEST_LINES
    if lines > limit:
        yield 1, f"module has {lines} lines, at most {limit} are allowed: split it by what its parts are for"
    for node in ast.walk(tree):
        if in_library and isinstance(node, ast.ClassDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > CLASS_LINES:
                yield node.lineno, f"class {node.name} has {length} lines, at most {CLASS_LINES} are allowed: split it"


def test_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names of test functions, each with its line number."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name


def check_test_name(line: int, name: str) -> Iterator[tuple[int, str]]:
    """Faults of a test's name: it is a sentence, or has words of the wordlist."""
    parts = name.split("_")[1:]
    if len(parts) > TEST_NAME_WORDS:
        yield line, f"{name} has {len(parts)} words, at most {TEST_NAME_WORDS} are allowed: name the behavior"
    yield from words(line, " ".join(parts))


def prose(source: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """String literals and comments of a module, each with its first line's number."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def without_code(text: str) -> str:
    """A Markdown text with its code blanked out, each line in its place."""
    text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.S)
    return re.sub(r"^    .*$|`[^`\n]*`", "", text, flags=re.M)


def words(start: int, text: str) -> Iterator[tuple[int, str]]:
    """Words of the wordlist in a text whose first line has the number `start`; a phrase may cross a line's end."""
    for word in WORDS:
        for found in re.finditer(word.pattern.replace(" ", r"\s+(?:# )?"), text):
            line = start + text.count("\n", 0, found.start())
            yield line, f"{' '.join(found[0].split())!r}: write {word.write} (the wordlist is in CONTRIBUTING.md)"


def check_python(path: Path, name: str) -> Iterator[tuple[int, str]]:
    source = path.read_text()
    tree = ast.parse(source)
    in_library = name.startswith(LIBRARY)
    yield from headless(tree)
    yield from too_long(tree, source.count("\n"), in_library)
    if path != Path(__file__):  # which contains the wordlist
        for line, text in prose(source, tree):
            yield from words(line, text)
    if name.startswith("tests/"):
        for line, test in test_names(tree):
            yield from check_test_name(line, test)


def check_document(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text()
    yield from words(1, without_code(text) if path.suffix == ".md" else text)


def check_wordlist() -> Iterator[tuple[int, str]]:
    """Differences between the wordlist of CONTRIBUTING.md and the one above."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for word in WORDS:
        if f"| {word.avoid} | {word.write} |" not in text:
            yield 1, f"the wordlist lacks the row '| {word.avoid} | {word.write} |' of {Path(__file__).name}"


def lines(files: Iterable[Path]) -> int:
    """Newlines in all files, those of compressed ones included."""
    return sum(path.read_bytes().count(b"\n") for path in files)


def commands(command: Any) -> int:
    """Commands of a group and the groups in it, hidden ones included; a group that does something itself is one."""
    if not hasattr(command, "commands"):
        return 1
    return int(command.invoke_without_command) + sum(map(commands, command.commands.values()))


def figures(files: Sequence[Path]) -> list[int]:
    """The present sizes, in the order of `BUDGETS`."""
    library = [path for path in files if path.suffix == ".py" and path.is_relative_to(ROOT / LIBRARY)]
    distributions = [
        [path for path in library if path.is_relative_to(ROOT / LIBRARY / name)]
        for name in ("mlplatform", "gateway", "stack", "warm")
    ]
    # Recorded releases are archives, which have no lines.
    tests = [path for path in files if path.is_relative_to(ROOT / "tests") and path.suffix != ".tar"]
    settings = re.findall(r"^[A-Z0-9_]+=", (ROOT / ".env.example").read_text(), re.M)
    verbs = re.findall(r"^[a-z-]+:.*## ", (ROOT / "Makefile").read_text(), re.M)
    sizes = [*map(lines, distributions), lines(tests)]
    markdown = sum(path.stat().st_size for path in files if path.suffix == ".md")
    return [*sizes, len(settings), len(FILES), len(verbs), commands(get_command(app)), markdown]


def check_budgets(files: Sequence[Path]) -> Iterator[str]:
    """Print each budget, and yield those that are exceeded."""
    print(f"{'budget':<36}{'now':>8}{'bound':>8}{'goal':>8}")
    for budget, now in zip(BUDGETS, figures(files), strict=True):
        print(f"{budget.what:<36}{now:>8,}{budget.bound:>8,}{budget.goal:>8,}")
        if now > budget.bound:
            yield f"{now:,} {budget.what}, at most {budget.bound:,} are allowed (BUDGETS of structure.py)"


def problems() -> Iterator[str]:
    files = tracked()
    yield from check_budgets(files)
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        found: Iterator[tuple[int, str]] = iter(())
        if path.suffix == ".py" and "/migrations/versions/" not in name:
            found = check_python(path, name)
        elif name == "CONTRIBUTING.md":
            found = check_wordlist()
        elif path.name.endswith(DOCUMENTS):
            found = check_document(path)
        yield from (f"{name}:{line}: {problem}" for line, problem in sorted(set(found)))


def main() -> int:
    found = list(problems())
    print("\n".join(found) or "Structure and language: all checks passed.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
