"""Recognition of the process that a job's command starts, whose trainings are counted."""

import sys

import pytest

from mlplatform.training import names

SCRIPT = ["train.py", "--note", "two words"]
LINE = "train.py --note 'two words'"


@pytest.mark.parametrize(
    "command",
    [
        f"python {LINE}",
        f"SEED=1 LR=0.1 python3 {LINE}",
        f"pip install --editable . && python {LINE}",
        f"python prepare.py && cd folder && SEED=1 python {LINE}",
        f"{LINE}",
    ],
)
def test_command_of_job_is_recognized(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["/opt/venv/bin/python", *SCRIPT])
    assert names.is_own_command(command)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "bash train.sh",
        "python train.py --note 'other words'",
        f"python {LINE} && python {LINE}",
        f"SEED=1 python {LINE} & SEED=2 python {LINE}",
        f"SEED=1 python {LINE}; SEED=2 python {LINE}",
        f"for seed in 1 2; do python {LINE}; done",
        f"xargs -n 1 python {LINE}",
        f"parallel python {LINE} ::: 1 2",
        f"python {LINE} && python report.py",
        "python train.py 'unfinished",
    ],
)
def test_one_of_several_programs_is_not_jobs_command(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["/opt/venv/bin/python", *SCRIPT])
    assert not names.is_own_command(command)


def test_interpreter_without_script_is_not_jobs_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python"])
    assert not names.is_own_command("python")
