"""What `import mlplatform` and `mlplatform --help` promise: public names, and nothing heavy loaded for them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mlplatform

HEAVY = {"torch", "ray", "mlflow", "boto3", "lightning", "pandas", "matplotlib"}


def loaded_by(program: str) -> set[str]:
    """Top-level modules that are loaded after a program has run in a fresh interpreter."""
    report = "import sys; print('\\nloaded', *{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", f"{program}\n{report}"], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("loaded")[2].split())


def test_import_loads_nothing_heavy() -> None:
    assert not HEAVY & loaded_by("import mlplatform.settings.job")


def test_submitting_loads_nothing_heavy() -> None:
    assert not HEAVY & loaded_by("import mlplatform.client.job_file; mlplatform.submit; mlplatform.check_capacity")


@pytest.mark.parametrize("words", [[], ["submit"], ["local"], ["local", "demo"], ["models"], ["data"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    loaded = loaded_by(f"from mlplatform.cli import app; app({[*words, '--help']}, standalone_mode=False)")
    assert "typer" in loaded
    assert not HEAVY & loaded


def test_every_public_name_is_there() -> None:
    for name in mlplatform.__all__:
        assert getattr(mlplatform, name) is not None, name
    assert set(mlplatform.__all__) == set(mlplatform._HOME)
    assert set(mlplatform.__all__) <= set(dir(mlplatform))


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(str(mlplatform.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(mlplatform.__all__)


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'job_runs'; it has .*job_run"):
        _ = mlplatform.job_runs


def test_platform_folder_does_not_hide_the_standard_library() -> None:
    assert not (Path(__file__).parents[2] / "platform" / "__init__.py").exists()
