"""Public names of the package."""

import ast
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mlplatform


def test_type_checkers_see_all_public_names() -> None:
    tree = ast.parse(Path(str(mlplatform.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported - {"Any"} == set(mlplatform.__all__)


def test_unknown_public_name_error_lists_known_names() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'job_runs'; it has .*job_run"):
        _ = mlplatform.job_runs


def test_laptops_get_few_packages() -> None:
    """The base requirements, and what these require in turn."""
    found, waiting = set[str](), ["mlplatform"]
    while waiting:
        name = waiting.pop()
        requirements = [Requirement(text) for text in requires(name) or []]
        chosen = [one for one in requirements if not one.marker or one.marker.evaluate({"extra": ""})]
        found.add(name)
        waiting += {canonicalize_name(one.name) for one in chosen} - found
        if name == "mlplatform":
            assert len(chosen) <= 5
    assert len(found) <= 22, found


def test_import_loads_no_large_package() -> None:
    code = "import sys, mlplatform; print(*{'fastapi', 'sqlalchemy', 'ray', 'torch', 'mlflow'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_platform_folder_does_not_shadow_standard_library() -> None:
    assert not (Path(__file__).parents[2] / "platform" / "__init__.py").exists()
