"""Commands, links and examples in the documents: each verb, variable, option, file and heading exists."""

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import page_table
import pytest
import typer
import yaml

import mlplatform
from mlplatform.cli.app import app
from mlplatform.client.job_file import JobFile

CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("docs", "platform", "compose", "docker", "images", "jobs", "tests")
DOCUMENTS = sorted(
    path.relative_to(CHECKOUT).as_posix()
    for pattern in ("*.md", *(f"{folder}/**/*.md" for folder in FOLDERS))
    for path in CHECKOUT.glob(pattern)
)
WORKFLOWS = sorted((CHECKOUT / "docs" / "ci").glob("*.yaml"))

BLOCK = r"```.*?```|^    \S[^\n]*$"

LONGEST = {"README.md": 120, "SECURITY.md": 60}
"""Lines of the documents that everybody reads first."""


def text_of(document: str) -> str:
    return (CHECKOUT / document).read_text()


def code(document: str) -> list[str]:
    """Lines of inline code and of code blocks."""
    text = text_of(document)
    blocks = re.findall(BLOCK, text, flags=re.S | re.M)
    prose = re.sub(BLOCK, "", text, flags=re.S | re.M)
    inline = re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", prose)
    lines = [line for block in blocks + inline for line in block.splitlines() if line.strip()]
    return [re.sub(r"<[^>]*>", "<value>", line) for line in lines]


def fenced(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(document), flags=re.S | re.M)


@cache
def command_line() -> Any:
    return typer.main.get_command(app)


def anchors(document: str) -> set[str]:
    """Headings as the sites that show repositories link them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text_of(document), flags=re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_verbs(name: str, lines: list[str]) -> None:
    """Fail if a line names a verb or variable that the Makefile lacks."""
    makefile = (CHECKOUT / "Makefile").read_text()
    verbs = set(re.findall(r"^([a-z./-]+):", makefile, flags=re.M))
    variables = set(re.findall(r"\$\((?:if |or )?\$?\(?([A-Z]+)\)", makefile))
    for line in lines:
        for words in re.findall(r"(?:^|[\s&(])make((?: -C \S+)?(?: +[\w./=<>~\"'-]+)+)", line):
            for word in re.sub(r"-C \S+", "", words).split():
                variable, is_variable, _ = word.partition("=")
                if is_variable:
                    assert variable in variables, f"{name}: {line!r} sets {variable}, which the Makefile does not read"
                elif re.fullmatch(r"[a-z.][a-z./-]+", word):
                    assert word in verbs, f"{name}: {line!r} names {word}, which is not a verb of the Makefile"
                else:
                    break


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_make_verbs_and_variables_exist(document: str) -> None:
    check_verbs(document, code(document))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_commands_exist(document: str) -> None:
    for line in code(document):
        for words in re.findall(r"(?<!from )(?<!import )\bmlplatform((?: [a-z][a-z-]*)+)", line):
            command = command_line()
            for word in words.split():
                # A command group; the following words are arguments.
                if not (known := getattr(command, "commands", None)):
                    break
                assert word in known, f"{document}: {line!r} names the unknown command {word!r}"
                command = known[word]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_options_of_commands_exist(document: str) -> None:
    for line in code(document):
        for call in re.findall(r"(?<![\w./-])mlplatform ([a-z][^#;&|`]*)", line):
            # What follows `--` belongs to the script.
            words = call.partition(" -- ")[0].split()
            command = command_line()
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            known.add("--help")
            for option in (word.partition("=")[0].rstrip(",.)") for word in words if re.match(r"--[a-z]", word)):
                assert option in known, f"{document}: {line!r} passes the unknown option {option}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document_links_resolve(document: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(document)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (CHECKOUT / document).parent / target if target else CHECKOUT / document
        assert path.exists(), f"{document} links {link}, which does not exist"
        if anchor:
            named = path.resolve().relative_to(CHECKOUT).as_posix()
            assert anchor in anchors(named), f"{document} links {link}, but {named} has no such heading"


def test_every_page_of_docs_is_linked_by_readme() -> None:
    pages = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "docs").glob("*.md")}
    assert len(pages) == 5
    assert pages <= set(re.findall(r"\]\(([^)#\s]+)\)", text_of("README.md")))


@pytest.mark.parametrize("document", LONGEST)
def test_first_pages_stay_short(document: str) -> None:
    assert text_of(document).count("\n") <= LONGEST[document]


def test_job_of_readme_uses_public_names() -> None:
    (job,) = fenced("README.md", "python")
    compile(job, "README.md", "exec")
    assert set(re.findall(r"\bmlplatform\.(\w+)", job)) <= set(mlplatform.__all__)


def test_documented_job_file_is_accepted(tmp_path: Path) -> None:
    (job_file,) = fenced("docs/lessons.md", "toml")
    (tmp_path / "job.toml").write_text(job_file)
    assert JobFile.beside(tmp_path).workers


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_name_verbs_and_variables_of_makefile(workflow: Path) -> None:
    def strings(node: Any) -> list[str]:
        if isinstance(node, dict):
            return [found for child in node.values() for found in strings(child)]
        if isinstance(node, list):
            return [found for child in node for found in strings(child)]
        return [str(node)]

    lines = [line for line in strings(yaml.safe_load(workflow.read_text())) if line.startswith("make ")]
    assert [shlex.split(line)[3].partition("=")[0] for line in lines] == ["build", "ci"]
    # Without the values, which are commands of their own.
    check_verbs(workflow.name, [re.sub(r'"[^"]*"', "value", line) for line in lines])


def test_workflows_exist() -> None:
    assert [path.stem for path in WORKFLOWS] == ["github", "gitlab"]


def test_table_of_pages_is_that_of_compose_files() -> None:
    text = page_table.README.read_text()
    assert page_table.rows().count("\n") >= 6
    assert page_table.HEADER + page_table.rows() + "\n" in text, "run `make format`"
    assert page_table.written(page_table.written(text.replace("| Grafana |", "| G |"))) == text
