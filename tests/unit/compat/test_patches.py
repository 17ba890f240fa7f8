"""Replaced functions of other libraries, and changes of modules that are imported later."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlplatform.compat.patches import AfterImport, around


class Library:
    def method(self, value: int) -> int:
        return value

    @staticmethod
    def static(value: int) -> int:
        return value

    @classmethod
    def of_class(cls, value: int) -> str:
        return f"{cls.__name__} {value}"


@pytest.mark.parametrize(("name", "result"), [("method", 3), ("static", 3), ("of_class", "Library 3")])
def test_replacement_gets_function_and_arguments(monkeypatch: pytest.MonkeyPatch, name: str, result: Any) -> None:
    monkeypatch.setattr(Library, name, vars(Library)[name])
    seen: list[Any] = []

    @around(Library, name)
    def noted(original: Any, *arguments: Any) -> Any:
        seen.append(arguments[-1])
        return original(*arguments)

    assert getattr(Library(), name)(3) == result
    assert seen == [3]


def test_second_replacement_adds_to_first_unless_it_is_once() -> None:
    module = SimpleNamespace(number=lambda: 1)
    around(module, "number")(lambda number: number() + 1)
    around(module, "number")(lambda number: number() + 1)
    assert module.number() == 3
    around(module, "number", once=True)(lambda number: number() + 1)
    assert module.number() == 3


def test_function_that_a_later_version_renames_is_named() -> None:
    with pytest.raises(AttributeError, match="renamed"):
        around(Library, "renamed")(lambda original: None)


def test_module_is_changed_when_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_later.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    AfterImport({"imported_later": lambda module: setattr(module, "value", module.value + 1)})
    assert importlib.import_module("imported_later").value == 2
