"""A job from its job file and command line options: options take precedence, invalid input is rejected."""

import subprocess
from pathlib import Path

import pytest

from mlplatform.capacity.resources import Resources, WorkerGroup
from mlplatform.client.job_file import JobFile, pairs, submission
from mlplatform.errors import JobError

FULL = """
entrypoint = "python train.py --lr 0.1"
cpus = 1
gpus = 0.5
max_restarts_on_failure = 2
limit = "4h"
after = ["fill-1"]
experiment = "food"
note = "first try"
pip = ["einops==0.8.1"]

[workers]
count = 2
cpus = 3
gpus = 1

[env]
DATA = "/mnt"
SEED = "1"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.toml").write_text(FULL)
    (tmp_path / "train.py").touch()
    return tmp_path


def test_folder_submission_uses_job_file(folder: Path) -> None:
    job = submission(folder, ["--name", "two words"])
    assert job.entrypoint == "python train.py --lr 0.1 --name 'two words'"
    assert (job.folder, job.name) == (folder, folder.name)
    assert job.resources == Resources(1, 0.5)
    assert job.workers == WorkerGroup(2, 3, 1)
    assert job.env == {"MLFLOW_EXPERIMENT_NAME": "food", "DATA": "/mnt", "SEED": "1"}
    assert (job.file.max_restarts_on_failure, job.file.note, job.file.pip) == (2, "first try", ["einops==0.8.1"])
    assert (job.file.limit, job.file.after, job.file.schedule) == ("4h", ["fill-1"], None)


def test_script_overrides_entry_point_of_job_file(folder: Path) -> None:
    job = submission(folder / "train.py", ["--epochs", "8"])
    assert job.entrypoint == ["python", "train.py", "--epochs", "8"]
    assert job.name == "train"
    assert job.resources == Resources(1, 0.5)


def test_options_override_job_file_per_key(folder: Path) -> None:
    options = {"cpus": 4.0, "env": {"SEED": "7"}, "experiment": "drinks", "note": "again", "limit": "2d"}
    job = submission(folder, entrypoint="true", workers={"count": 5}, **options)
    assert job.entrypoint == "true"
    assert job.resources == Resources(4, 0.5)
    assert job.workers == WorkerGroup(5, 3, 1)
    assert job.env == {"MLFLOW_EXPERIMENT_NAME": "drinks", "DATA": "/mnt", "SEED": "7"}
    assert (job.file.note, job.file.limit) == ("again", "2d")


def test_submission_without_job_file_has_defaults(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    job = submission(tmp_path / "train.py")
    assert job.file == JobFile.model_validate({})
    assert (job.resources, job.workers, job.env) == (Resources(), None, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu = 1", "job.toml cannot be used: unknown key 'gpu', the known ones are entrypoint, cpus, gpus, workers"),
        ("[workers]\nsize = 2", "unknown key 'workers.size', the known ones are count, cpus, gpus."),
        ("cpus = 'two'", "cpus = 'two': input should be a valid number"),
        ("max_restarts_on_failure = -1", "max_restarts_on_failure = -1: input should be greater than or equal to 0"),
        ("limit = '4 hours'", "limit = '4 hours': use a number of at most 6 digits and s, m, h, d or w, as in 7d."),
        ("limit = 4", "limit = 4: input should be a valid string"),
        ("cpus =", "job.toml is not valid TOML: Invalid value"),
        ("cpus = 1", 'job.toml names no entrypoint; write one with entrypoint = "python train.py"'),
    ],
)
def test_invalid_job_file_gives_one_sentence_error(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(JobError) as error:
        submission(tmp_path)
    assert expected in str(error.value)
    assert str(tmp_path / "job.toml") in str(error.value)
    assert "\n" not in str(error.value)


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("gpu = 1\ncpus = -1")
    with pytest.raises(JobError, match=r"cpus = -1: .*; unknown key 'gpu'"):
        submission(tmp_path)


def test_folder_without_job_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"/job.toml is not there; write one with entrypoint"):
        submission(tmp_path)
    assert submission(tmp_path, entrypoint="true").entrypoint == "true"


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"There is no file .*/none.py; name the Python file to run, or a folder"):
        submission(tmp_path / "none.py")


def test_invalid_option_is_rejected(folder: Path) -> None:
    with pytest.raises(JobError, match=r"The options cannot be used: cpus = -1.0: input should be greater"):
        submission(folder, cpus=-1.0)


def test_env_values_may_contain_equal_signs() -> None:
    assert pairs(["A=1", "B=", "C=x=y"]) == {"A": "1", "B": "", "C": "x=y"}


@pytest.mark.parametrize("word", ["SEED", "=1", "MY KEY=1", ""])
def test_malformed_env_pair_is_rejected(word: str) -> None:
    with pytest.raises(JobError, match="is not a pair; write --env KEY=VALUE") as error:
        pairs(["A=1", word])
    assert repr(word) in str(error.value)


def test_arguments_reach_entry_point_unchanged(tmp_path: Path) -> None:
    words = ["two words", "it's", "$HOME", "*"]
    line = submission(tmp_path, words, entrypoint="printf '%s\\n'").entrypoint
    assert isinstance(line, str)
    assert subprocess.check_output(["sh", "-c", line], text=True).splitlines() == words
