"""A job put together from its file and the options: options win, and what is not understood is refused."""

import subprocess
from pathlib import Path

import pytest

from mlplatform.client.job_file import JobFile, pairs, submission
from mlplatform.errors import JobError
from mlplatform.scheduling.resources import Resources, WorkerGroup

FULL = """
entrypoint = "python train.py --lr 0.1"
cpus = 1
gpus = 0.5
max_restarts_on_failure = 2
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


def test_a_folder_runs_what_its_job_file_says(folder: Path) -> None:
    job = submission(folder, ["--name", "two words"])
    assert job.entrypoint == "python train.py --lr 0.1 --name 'two words'"
    assert (job.folder, job.name) == (folder, folder.name)
    assert job.resources == Resources(1, 0.5)
    assert job.workers == WorkerGroup(2, 3, 1)
    assert job.env == {"MLFLOW_EXPERIMENT_NAME": "food", "DATA": "/mnt", "SEED": "1"}
    assert (job.file.max_restarts_on_failure, job.file.note, job.file.pip) == (2, "first try", ["einops==0.8.1"])


def test_a_script_wins_over_the_files_entry_point_and_takes_the_rest(folder: Path) -> None:
    job = submission(folder / "train.py", ["--epochs", "8"])
    assert job.entrypoint == ["python", "train.py", "--epochs", "8"]
    assert job.name == "train"
    assert job.resources == Resources(1, 0.5)


def test_options_win_key_by_key(folder: Path) -> None:
    job = submission(
        folder, entrypoint="true", cpus=4.0, workers={"count": 5}, env={"SEED": "7"}, experiment="drinks", note="again"
    )
    assert job.entrypoint == "true"
    assert job.resources == Resources(4, 0.5)
    assert job.workers == WorkerGroup(5, 3, 1)
    assert job.env == {"MLFLOW_EXPERIMENT_NAME": "drinks", "DATA": "/mnt", "SEED": "7"}
    assert job.file.note == "again"


def test_without_a_job_file_everything_has_its_default(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    job = submission(tmp_path / "train.py")
    assert job.file == JobFile.model_validate({})
    assert (job.resources, job.workers, job.env) == (Resources(), None, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu = 1", "job.toml cannot be used: unknown key 'gpu', the known ones are entrypoint, cpus, gpus, workers"),
        ("[workers]\nsize = 2", "unknown key 'workers.size', the known ones are count, cpus, gpus."),
        ("cpus = 'two'", "cpus = 'two': input should be a valid number"),
        ("max_restarts_on_failure = -1", "max_restarts_on_failure = -1: input should be greater than or equal to 0"),
        ("cpus =", "job.toml is not valid TOML: Invalid value"),
        ("cpus = 1", 'job.toml names no entrypoint; write one with entrypoint = "python train.py"'),
    ],
)
def test_a_job_file_that_cannot_be_used_is_refused_in_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(JobError) as error:
        submission(tmp_path)
    assert said in str(error.value)
    assert str(tmp_path / "job.toml") in str(error.value)
    assert "\n" not in str(error.value)


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("gpu = 1\ncpus = -1")
    with pytest.raises(JobError, match=r"cpus = -1: .*; unknown key 'gpu'"):
        submission(tmp_path)


def test_a_folder_without_a_job_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"/job.toml is not there; write one with entrypoint"):
        submission(tmp_path)
    assert submission(tmp_path, entrypoint="true").entrypoint == "true"


def test_a_path_where_nothing_is_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"There is no file .*/none.py; name the Python file to run, or a folder"):
        submission(tmp_path / "none.py")


def test_an_option_that_cannot_be_used_is_refused(folder: Path) -> None:
    with pytest.raises(JobError, match=r"The options cannot be used: cpus = -1.0: input should be greater"):
        submission(folder, cpus=-1.0)


def test_pairs_may_hold_equal_signs() -> None:
    assert pairs(["A=1", "B=", "C=x=y"]) == {"A": "1", "B": "", "C": "x=y"}


@pytest.mark.parametrize("word", ["SEED", "=1", "MY KEY=1", ""])
def test_an_environment_without_a_pair_is_refused(word: str) -> None:
    with pytest.raises(JobError, match="is not a pair; write --env KEY=VALUE") as error:
        pairs(["A=1", word])
    assert repr(word) in str(error.value)


def test_arguments_reach_the_entry_point_as_they_were_given(tmp_path: Path) -> None:
    words = ["two words", "it's", "$HOME", "*"]
    line = submission(tmp_path, words, entrypoint="printf '%s\\n'").entrypoint
    assert isinstance(line, str)
    assert subprocess.check_output(["sh", "-c", line], text=True).splitlines() == words


def test_old_names_of_the_limits_on_restarts_work_with_a_notice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.toml").write_text("entrypoint = 'true'\nretries = 2\nmax_losses = 5\n")
    job = submission(tmp_path, [])
    assert (job.file.max_restarts_on_failure, job.file.max_restarts_on_loss) == (2, 5)
    notices = capsys.readouterr().err.splitlines()
    assert sorted(notices) == [
        "max_losses is now called max_restarts_on_loss; the old name works until 1.0.",
        "retries is now called max_restarts_on_failure; the old name works until 1.0.",
    ]


def test_a_new_name_wins_over_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("entrypoint = 'true'\nretries = 2\nmax_restarts_on_failure = 7\n")
    assert submission(tmp_path, []).file.max_restarts_on_failure == 7
