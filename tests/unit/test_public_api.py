"""Public names of the package."""

import ast
from pathlib import Path

import pytest

import mlplatform


def test_type_checkers_see_all_public_names() -> None:
    tree = ast.parse(Path(str(mlplatform.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported - {"Any"} == set(mlplatform.__all__)


def test_unknown_public_name_error_lists_known_names() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'job_runs'; it has .*job_run"):
        _ = mlplatform.job_runs


def test_platform_folder_does_not_shadow_standard_library() -> None:
    assert not (Path(__file__).parents[2] / "platform" / "__init__.py").exists()
