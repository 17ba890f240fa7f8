"""Every command that lists something prints JSON, too; the commands are found in the command line itself."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from command_line import Serve, mlplatform

from mlplatform.cli.app import app

PRINTS = {"print_list", "print_table", "print_json"}


def commands(group: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words; a group that is a command by itself is one."""
    if group.callback is not None and not getattr(group, "no_args_is_help", False):
        yield words, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, *words, name)


def used(function: Any, seen: set[str]) -> set[str]:
    """Names that a function uses, and those that private functions of its module use that it calls."""
    for name in set(function.__code__.co_names) - seen:
        seen.add(name)
        if name.startswith("_") and inspect.isfunction(found := function.__globals__.get(name)):
            used(found, seen)
    return seen


def lists(words: tuple[str, ...], command: Any) -> bool:
    """Return whether a command is named so, says so, prints a table or JSON, or lists when no verb is given."""
    is_named = words[-1] == "list" or (command.help or "").startswith("List ")
    return (
        is_named
        or "list" in getattr(command, "commands", {})
        or bool(used(inspect.unwrap(command.callback), set()) & PRINTS)
    )


LISTS = {words: command for words, command in commands(typer.main.get_command(app)) if lists(words, command)}

OF_GATEWAY = {
    ("audit",): '{"entries": []}',
    ("dev", "list"): "[]",
    ("jobs",): "[]",
    ("jobs", "list"): "[]",
    ("people", "list"): '{"people": []}',
    ("queue",): '{"at": null, "waiting": 0, "entries": []}',
    ("secrets", "list"): '{"secrets": []}',
    ("teams", "list"): '{"teams": []}',
    ("tokens", "list"): '{"tokens": []}',
    ("usage",): '{"since": 0, "until": 1, "entries": [], "next": null}',
}


def test_lists_are_found() -> None:
    assert LISTS.keys() - OF_GATEWAY.keys() == {
        *(("data", "list"), ("models",), ("models", "list"), ("top",)),
        *(("stack", "hosts"), ("stack", "prune"), ("stack", "status")),
    }


@pytest.mark.parametrize("words", LISTS)
def test_every_list_has_json(words: tuple[str, ...]) -> None:
    assert "--json" in {option for parameter in LISTS[words].params for option in parameter.opts}


@pytest.mark.parametrize("words", OF_GATEWAY)
def test_empty_list_has_no_line_of_json(words: tuple[str, ...], serve: Serve) -> None:
    address = serve(lambda method, path: (200, OF_GATEWAY[words]))
    done = mlplatform(*words, "--json", RAY_ADDRESS=address)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
