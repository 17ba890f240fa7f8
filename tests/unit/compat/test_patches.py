"""Replaced functions of other libraries, and changes of modules that are imported later."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlplatform.compat.patches import AfterImport, around


class Library:
    def method(self, value: int) -> int:
        return value

    @staticmethod
    def static(value: int) -> int:
        return value

    @classmethod
    def of_class(cls, value: int) -> int:
        return value if cls is Library else -1


@pytest.mark.parametrize("name", ["method", "static", "of_class"])
def test_replacement_gets_function_and_arguments(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(Library, name, vars(Library)[name])
    around(Library, name)(lambda original, *arguments: original(*arguments) + 1)
    assert getattr(Library(), name)(3) == 4


def test_second_replacement_adds_to_first_unless_it_is_once() -> None:
    module = SimpleNamespace(number=lambda: 1)
    for once in (False, False, True):
        around(module, "number", once=once)(lambda number: number() + 1)
    assert module.number() == 3


def test_module_is_changed_when_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_later.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    AfterImport({"imported_later": lambda module: setattr(module, "value", module.value + 1)})
    assert importlib.import_module("imported_later").value == 2
