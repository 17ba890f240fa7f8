"""Packages that projects ask for: a job's environment gets what uv or pip would install into the image's, or fails so.

The lists are the requirements that these public projects state. None is installed: both sides only plan.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from package_index import served, wheel

from mlplatform import overlay

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

LISTS = {
    "gourmetgram-train": "torch torchvision lightning boto3 s3fs",
    "nanogpt": "torch numpy transformers datasets tiktoken wandb tqdm",
    "whisper": "more-itertools numba numpy tiktoken torch tqdm",
    "segment-anything": "matplotlib pycocotools opencv-python onnx onnxruntime",
    "yolov5": "gitpython>=3.1.30 matplotlib>=3.3 numpy>=1.23.5 opencv-python>=4.1.1 pillow>=10.3.0 psutil PyYAML>=5.3.1"
    " requests>=2.32.2 scipy>=1.4.1 thop>=0.1.1 torch>=1.8 torchvision>=0.9 tqdm>=4.66.3 pandas>=1.1.4 seaborn>=0.11",
    "sentence-transformers": "transformers>=4.41,<6 tqdm torch>=1.11 scikit-learn scipy huggingface-hub>=0.20 Pillow",
    "timm": "torch torchvision pyyaml huggingface_hub safetensors",
    "stable-baselines3": "gymnasium>=0.29.1,<2 numpy>=1.20,<3 torch>=2.3,<3 cloudpickle pandas matplotlib",
    "detectron-like": "fvcore iopath omegaconf>=2.1 hydra-core>=1.1 black tabulate termcolor yacs tensorboard",
    "tabular": "xgboost lightgbm optuna shap scikit-learn",
    "spacy": "spacy>=3.7 typer wasabi",
    "forecasting": "statsmodels prophet pmdarima",
    "full-stack-fastapi": "fastapi[standard] python-multipart tenacity pydantic>2 jinja2 alembic httpx sqlmodel pyjwt",
    "streamlit": "streamlit pandas plotly altair",
    "cookiecutter-data-science": "click Sphinx coverage flake8 python-dotenv>=0.5.1",
    "older-torch": "torch==2.6.0 torchvision==0.21.0",
    "conflict": "torch==2.6.0 torchvision==0.20.0",
    "no-wheel": "tensorflow==2.5.0",
    "extra-index": "--extra-index-url={index} in-house rich",
    "git": "toolz git+file://{repository}",
}

PROJECT = '[project]\nname = "from-git"\nversion = "1.2"\ndependencies = ["colorama"]\n'


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An index with a package, and a repository with another."""
    index, repository = tmp_path_factory.mktemp("index"), tmp_path_factory.mktemp("repository")
    wheel(index, "in-house", "1.0", "tabulate")
    (repository / "pyproject.toml").write_text(PROJECT)
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "--message=first")):
        subprocess.run(["git", *words], cwd=repository, check=True)
    with served(index) as address:
        yield {"index": address, "repository": str(repository)}


def planned_by_uv(prefix: Path, wanted: list[str]) -> tuple[set[str], str]:
    """Packages that uv would install into an environment, or its sentence."""
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "pip", "install", "--dry-run", "--python", prefix, *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    added = set(re.findall(r"^ [+~] (\S+)", done.stderr, re.MULTILINE))
    return added, "" if done.returncode == 0 else done.stderr.partition("\n")[2]


def planned_by_pip(prefix: Path, wanted: list[str]) -> tuple[set[str], str]:
    """Packages that pip would install into an environment, or its sentence."""
    options = ("--dry-run", "--quiet", "--disable-pip-version-check", "--report=-")
    command = [prefix / "bin/python", "-m", "pip", "install", *options, *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return set(), done.stderr.splitlines()[-1]
    found = [entry["metadata"] for entry in json.loads(done.stdout)["install"]]
    return {f"{entry['name']}=={entry['version']}" for entry in found}, ""


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("planned", [planned_by_uv, planned_by_pip], ids=["uv", "pip"])
def test_list_becomes_what_image_would_get(
    planned: Callable[[Path, list[str]], tuple[set[str], str]], name: str, places: dict[str, str], tmp_path: Path
) -> None:
    wanted = LISTS[name].format(**places).split()
    environment = tmp_path / "environment"
    overlay.create(environment)
    expected = planned(Path(sys.prefix), wanted)
    # pip finds them by itself.
    with overlay.known_to_uv(environment) if planned is planned_by_uv else nullcontext():
        assert planned(environment, wanted) == expected
    assert bool(expected[1]) == (name in ("conflict", "no-wheel"))
