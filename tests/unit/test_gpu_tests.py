"""The tests of `tests/gpu`, which CI cannot run: they are collected, skip with one sentence, and report figures."""

import subprocess
import sys
from pathlib import Path

import gpu_report
import pytest
from gpu_host import NO_GPU, host
from gpu_report import Outcome

TESTS = Path(__file__).parents[1]


def run_gpu_tests(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(TESTS / "gpu")]
    return subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False, timeout=120)


def test_machine_without_gpu_skips_with_one_sentence() -> None:
    # Not in a mark, which each process that collects tests would evaluate: it asks Docker.
    if host().gpus:
        pytest.skip("this machine has GPUs, so that the tests would run")
    done = run_gpu_tests()
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, report = done.stdout.partition("= GPUs =")
    assert report.splitlines()[1] == NO_GPU
    assert " skipped" in done.stdout
    assert " passed" not in done.stdout


def test_stack_must_have_settings(tmp_path: Path) -> None:
    done = run_gpu_tests("--collect-only", f"--running={tmp_path}")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"{tmp_path} has no .env: let --running name the checkout of a running stack" in done.stderr


def test_report_has_figures_and_reasons() -> None:
    ends = [
        Outcome("test_a.py::test_b", "passed", figures=[("GPU 0", "41 % busy")]),
        Outcome("test_a.py::test_c", "failed"),
        Outcome("test_a.py::test_d", "skipped", "needs 2 GPUs, and this machine has 1"),
        Outcome("test_w.py::test_e", "skipped", "needs 2 GPUs, and this machine has 1"),
        Outcome("test_w.py::test_f", "skipped", "it is too slow"),
    ]
    assert list(gpu_report.lines("0, GPU X, 80 GiB\n", "2.15.0, which sees GPU X", ends)) == [
        "0, GPU X, 80 GiB",
        "torch: 2.15.0, which sees GPU X",
        "passed: test_a.py::test_b",
        "    GPU 0: 41 % busy",
        "failed: test_a.py::test_c",
        "left out, because it needs 2 GPUs, and this machine has 1:",
        "    test_a.py::test_d",
        "    test_w.py::test_e",
        "left out: it is too slow",
        "    test_w.py::test_f",
    ]


def test_skip_of_pytest_gives_its_reason() -> None:
    skip = ("/tests/gpu/test_a.py", 3, "Skipped: needs a running stack")
    report = pytest.TestReport("tests/gpu/test_a.py::test_b", ("", 3, ""), {}, "skipped", skip, "setup")
    assert Outcome.of(report) == Outcome("test_a.py::test_b", "skipped", "needs a running stack", [])
