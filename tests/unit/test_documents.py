"""Commands and links in the documents: each verb, variable and file exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import page_table
import pytest
import typer

from mlplatform.cli import app

CHECKOUT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(CHECKOUT).as_posix()
    for pattern in (
        "*.md",
        "platform/*.md",
        "compose/*.md",
        "docker/*.md",
        "images/**/*.md",
        "jobs/*.md",
        "tests/**/*.md",
    )
    for path in CHECKOUT.glob(pattern)
)
# Old names that users may find in older guides, next to their replacements.
OF_THE_PAST = {"CHANGELOG.md", "jobs/OLDER-GUIDES.md"}


def code(document: str) -> list[str]:
    """Lines of inline code and of code blocks."""
    text = (CHECKOUT / document).read_text()
    blocks = re.findall(r"```.*?```|^    \S.*$", text, flags=re.S | re.M)
    inline = re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", re.sub(r"```.*?```", "", text, flags=re.S))
    lines = [line for block in blocks + inline for line in block.splitlines() if line.strip()]
    return [re.sub(r"<[^>]*>", "<value>", line) for line in lines]


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name not in OF_THE_PAST])
def test_documented_make_verbs_and_variables_exist(document: str) -> None:
    makefile = (CHECKOUT / "Makefile").read_text()
    verbs = set(re.findall(r"^([a-z./-]+):", makefile, flags=re.M))
    variables = set(re.findall(r"\$\((?:if |or )?\$?\(?([A-Z]+)\)", makefile))
    for line in code(document):
        for words in re.findall(r"(?:^|[\s&(])make((?: -C \S+)?(?: +[\w./=<>~\"'-]+)+)", line):
            for word in re.sub(r"-C \S+", "", words).split():
                name, is_variable, _ = word.partition("=")
                if is_variable:
                    assert name in variables, f"{document}: {line!r} sets {name}, which the Makefile does not read"
                elif re.fullmatch(r"[a-z.][a-z./-]+", word):
                    assert word in verbs, f"{document}: {line!r} names {word}, which is not a verb of the Makefile"
                else:
                    break


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_commands_exist(document: str) -> None:
    for line in code(document):
        for words in re.findall(r"(?<!from )(?<!import )\bmlplatform((?: [a-z][a-z-]*)+)", line):
            command: Any = typer.main.get_command(app)
            for word in words.split():
                # A command group; the following words are arguments.
                if not (known := getattr(command, "commands", None)):
                    break
                assert word in known, f"{document}: {line!r} names the unknown command {word!r}"
                command = known[word]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document_links_resolve(document: str) -> None:
    text = (CHECKOUT / document).read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target = link.partition("#")[0]
        if target and not re.match(r"[a-z]+:", target):
            assert ((CHECKOUT / document).parent / target).exists(), f"{document} links {link}, which does not exist"


def test_table_of_pages_is_that_of_compose_files() -> None:
    text = page_table.README.read_text()
    assert page_table.rows().count("\n") >= 6
    assert page_table.HEADER + page_table.rows() + "\n" in text, "run `make format`"
    assert page_table.written(page_table.written(text.replace("| Grafana |", "| G |"))) == text
