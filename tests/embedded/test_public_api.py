"""Light imports and complete public names, where torch, Ray and MLflow are installed."""

import subprocess
import sys

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
    loaded = loaded_by(f"from mlplatform.cli.app import app; app({[*words, '--help']}, standalone_mode=False)")
    assert "typer" in loaded
    assert not HEAVY & loaded


def test_every_public_name_exists() -> None:
    for name in mlplatform.__all__:
        assert getattr(mlplatform, name) is not None, name
    assert set(mlplatform.__all__) <= set(dir(mlplatform))
