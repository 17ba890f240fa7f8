"""The log of starts: one line per start, of bounded size, and never a reason for a program to fail."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
from warm import SHIM

from mlplatform import contract
from mlplatform.compat import ray_setup_worker
from mlplatform_warm import client, notes

OF_JOB = {"MLPLATFORM_JOB_ID": "mine", "MLPLATFORM_ATTEMPT": "2"}


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize(
    ("template", "role"), [("driver", "driver"), ("job-02000000-0a1b2c3d", "worker"), ("base", "worker")]
)
def test_line_names_job_attempt_role_and_reason(template: str, role: str, tmp_path: Path) -> None:
    log = tmp_path / "starts.jsonl"
    notes.note({**OF_JOB, notes.REASON: str(log)}, template, None)
    notes.note({notes.REASON: str(log)}, template, "HF_HOME differs")
    warm, cold = lines(log)
    assert (warm["job"], warm["attempt"], warm["role"], warm["cold"]) == ("mine", "2", role, None)
    assert (cold["job"], cold["attempt"], cold["role"], cold["cold"]) == (None, None, role, "HF_HOME differs")


def test_gateway_knows_the_lines_of_jobs_logs() -> None:
    assert (contract.STARTED_WARM, contract.STARTED_COLD) == (notes.WARM, notes.COLD)


def test_line_is_valid_and_bounded(tmp_path: Path) -> None:
    log = tmp_path / "starts.jsonl"
    notes.note({**OF_JOB, notes.REASON: str(log)}, "driver", os.fsdecode(b"/modules/\xff") + "\u20ac\n" * 5000)
    notes.note({"MLPLATFORM_JOB_ID": "x" * 5000, notes.REASON: str(log)}, "driver", None)
    (line,) = log.read_bytes().splitlines(keepends=True)
    assert len(line) <= notes.LINE_BYTES
    assert line.endswith(b"\n")
    assert json.loads(line)["cold"].startswith("/modules/?\u20ac\n")
    line.decode("ascii")


def test_full_log_gets_no_more_lines(tmp_path: Path) -> None:
    log = tmp_path / "starts.jsonl"
    with log.open("wb") as file:
        file.truncate(notes.LOG_BYTES - 1)
    for _ in range(3):
        notes.note({notes.REASON: str(log)}, "driver", None)
    assert notes.LOG_BYTES < log.stat().st_size < notes.LOG_BYTES + notes.LINE_BYTES


def test_unusable_log_is_ignored(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("", "/nowhere/starts.jsonl", str(tmp_path), str(tmp_path / "pipe"), "a\0b", "/dev/full"):
        notes.note({notes.REASON: path}, "driver", None)
    notes.note({}, "driver", None)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def cold(tmp_path: Path, words: list[str], errors: int | IO[bytes], **variables: str) -> str:
    """Run a program of a job with warm start off; return its output."""
    variables |= {client.SOCKETS: str(tmp_path), client.SWITCH: "0"}
    command = [sys.executable, "-IS", "-c", SHIM, *words]
    return subprocess.check_output(command, env={**os.environ, **OF_JOB, **variables}, stderr=errors, text=True)


def test_program_with_warm_start_off_is_noted(tmp_path: Path) -> None:
    log = tmp_path / "starts.jsonl"
    program = ["-c", "print('ran')"]
    assert cold(tmp_path, program, subprocess.STDOUT, **{notes.REASON: str(log)}) == "ran\n"
    (line,) = lines(log)
    assert (line["job"], line["role"], line["cold"]) == ("mine", "driver", "warm start is off")


def entry_point(tmp_path: Path, errors: str, words: list[str]) -> str:
    """Run a program of an entry point with its standard error in a file; return that."""
    with (tmp_path / errors).open("ab") as file:
        cold(tmp_path, words, file)
    return (tmp_path / errors).read_text()


COLD = f"{notes.COLD}warm start is off\n"


def test_log_of_job_names_start_of_its_program(tmp_path: Path) -> None:
    words = ["-c", "import sys; sys.stderr.write('ran\\n')"]
    assert entry_point(tmp_path, "job-driver-mine--1-0a1b2c.log", words) == f"{COLD}ran\n"
    assert entry_point(tmp_path, "job-driver-mine--1-0a1b2c.log", words) == f"{COLD}ran\n" * 2


def test_log_of_job_omits_programs_of_its_program(tmp_path: Path) -> None:
    again = "import os, sys; os.execv(sys.executable, [sys.executable, '-IS', '-c', sys.argv[1], '-c', ''])"
    assert entry_point(tmp_path, "job-driver-mine.log", ["-c", again, SHIM]) == COLD


def test_file_of_the_job_gets_no_line(tmp_path: Path) -> None:
    assert entry_point(tmp_path, "errors.txt", ["-c", ""]) == ""


def test_worker_with_its_own_python_is_noted(tmp_path: Path) -> None:
    log = tmp_path / "starts.jsonl"
    context = {"env_vars": OF_JOB, "py_executable": "env python3"}
    words = ["-c", "--language=PYTHON", f"{ray_setup_worker.CONTEXT}{json.dumps(context)}", "print('ran')"]
    command = [sys.executable, ray_setup_worker.__file__, *words]
    env = {**os.environ, notes.REASON: str(log), "RAY_JOB_ID": "02000000"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.stdout == "ran\n", done.stderr
    (line,) = lines(log)
    assert (line["job"], line["attempt"], line["role"]) == ("mine", "2", "worker")
    assert "a Python or a shell command of its own" in line["cold"]
