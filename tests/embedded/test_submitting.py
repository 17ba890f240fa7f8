"""Submitting to a real Ray: a job's options, rejected requests, and the delay of its reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from embedded import runs_of, succeeded
from waiting import wait_for

from mlplatform.capacity.resources import WorkerGroup
from mlplatform.client.jobs import Jobs
from mlplatform.contract import REPORT
from mlplatform.errors import CapacityError
from mlplatform.settings.job import Settings

PRINT_SETTINGS = """
import json, sys
from mlplatform.settings.environment import environment
from mlplatform.settings.job import settings
names = ("MLFLOW_EXPERIMENT_NAME", "SEED")
line = json.dumps({"note": settings().note, "attempt": settings().attempt, "arguments": sys.argv[1:],
                   **{name: environment().get(name) for name in names}})
# Ray makes the output unbuffered: `print` writes the end of the line by itself, and others may write in between.
sys.stdout.write(line + "\\n")
sys.exit(settings().attempt < 2)
"""

REPORT_SLOWLY = f"""
import json, pathlib, sys, time
for step in range(8):
    print("other", step)
    print({REPORT!r}, json.dumps({{"step": step, "printed": time.time()}}), flush=True)
    time.sleep(0.6)
"""


def submit(reached: Settings, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mlplatform", "submit", *words]
    env = {**os.environ, **reached.environment()}
    return subprocess.Popen(command, env=env, stdout=-1, stderr=-1, text=True)


def printed(text: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    except json.JSONDecodeError as error:
        raise AssertionError(f"A line was not printed alone: {text!r}") from error


def test_job_file_and_options_apply_and_failure_restarts(reached: Settings, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PRINT_SETTINGS)
    (tmp_path / "job.toml").write_text(
        'cpus = 0.5\nmax_restarts_on_failure = 3\nexperiment = "food"\nnote = "first"\n'
        '[env]\nSEED = "1"\n[workers]\ncount = 2\n'
    )
    job = submit(reached, str(tmp_path / "train.py"), "--note", "it's the second", "--", "--name", "two words")
    output, error = job.communicate(timeout=120)
    assert job.returncode == 0, error
    attempts = printed(output)
    assert [attempt.pop("attempt") for attempt in attempts] == [1, 2]
    given = {"note": "it's the second", "arguments": ["--name", "two words"]}
    assert attempts == [{**given, "MLFLOW_EXPERIMENT_NAME": "food", "SEED": "1"}] * 2
    assert "attempt 1 failed: exit code 1." in output


def test_infeasible_job_is_rejected_and_not_listed(reached: Settings, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with Jobs(reached) as jobs:
        before = jobs.list()
        job = submit(reached, str(tmp_path / "train.py"), "--gpus", "4")
        _, error = job.communicate(timeout=60)
        assert job.returncode == 5
        assert "The entry point asks for 4 GPUs; no node has a GPU (" in error
        assert len(error.strip().splitlines()) == 1
        with pytest.raises(CapacityError, match=r"asks for 99 workers with 1 CPU each; all nodes together hold \d"):
            jobs.submit("true", tmp_path, workers=WorkerGroup(99))
        assert jobs.list() == before


def test_reports_arrive_while_job_runs(reached: Settings, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(REPORT_SLOWLY)
    with Jobs(reached) as jobs:
        job_id = jobs.submit("python slow.py", tmp_path, name="reports")
        seen = [(report["step"], time.time() - report["printed"]) for report in jobs.reports(job_id)]
        assert [step for step, _ in seen] == list(range(8))
        # The job lasts as long as eight reports; had they arrived at its end, the first would be nearly 5 s old.
        late = sorted(delay for _, delay in seen)
        print("delays of reports:", ", ".join(f"{delay:.2f}" for delay in late))
        assert late[len(late) // 2] < 1.5, seen


RUNTIME_ENV = """
import json, os, ray
ray.init(runtime_env={"env_vars": {"OF_SCRIPT": "script"}})
names = ("OF_SCRIPT", "OF_JOB", "MLPLATFORM_JOB_ID", "MLPLATFORM_STORAGE")
found = ray.get(ray.remote(lambda: {name: os.environ.get(name) for name in names}).remote())
print(json.dumps(found))
"""


def test_runtime_env_of_script_is_added_to_jobs(reached: Settings, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RUNTIME_ENV)
    with Jobs(reached) as jobs:
        job_id = jobs.submit("python train.py", tmp_path, name="init", env={"OF_JOB": "job"})
        log = succeeded(jobs, job_id)
    expected = {"OF_SCRIPT": "script", "OF_JOB": "job", "MLPLATFORM_JOB_ID": job_id}
    assert printed(log) == [{**expected, "MLPLATFORM_STORAGE": reached.storage}]


def test_following_long_log_has_each_line_once(reached: Settings, tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(
        "import time\nfor number in range(60_000):\n    print('line', number)\n"
        "    if number % 2_000 == 0: time.sleep(0.1)\nprint('no end', end='')\n"
    )
    with Jobs(reached) as jobs:
        job_id = jobs.submit("python chatty.py", tmp_path, name="chatty")
        lines = [line for line in jobs.follow(job_id) if line.startswith(("line", "no end"))]
    assert lines == [*(f"line {number}" for number in range(60_000)), "no end"]


def test_ctrl_c_detaches_and_prints_next_commands(reached: Settings, tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text("import signal\nprint('hanging', flush=True)\nsignal.pause()\n")
    job = submit(reached, str(tmp_path / "hang.py"))
    assert job.stdout
    job_id = job.stdout.readline().split()[2].rstrip(";")
    with Jobs(reached) as jobs:
        try:
            for line in job.stdout:
                if "hanging" in line:
                    break
            job.send_signal(signal.SIGINT)
            _, error = job.communicate(timeout=30)
            assert job.returncode == 130
            assert f"mlplatform logs -f {job_id}" in error
            assert f"mlplatform stop {job_id}" in error
            # The log may be ahead of the state, which the gateway polls from Ray at intervals.
            wait_for(lambda: jobs.get(job_id).status == "RUNNING", "the job to be running still", 10)
        finally:
            job.kill()
            jobs.stop(job_id)
            jobs.wait(job_id, timeout_s=60)


SUBMIT_ANOTHER = """
import os, subprocess, sys
import ray
from mlplatform import Jobs

@ray.remote(num_cpus=0)
def seen(job_id):
    with Jobs() as jobs:
        return jobs.get(job_id).id

print("address", os.environ["RAY_ADDRESS"])
words = ["mlplatform", "submit", "child.py", "--no-wait"]
printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
child = printed.split("Submitted job ")[1].split(";")[0]
print("child", ray.get(seen.remote(child)), flush=True)
subprocess.run(["mlplatform", "wait", child], check=True)
"""


def test_job_submits_and_sees_another_job(reached: Settings, tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(SUBMIT_ANOTHER)
    (tmp_path / "child.py").write_text("print('hello')\n")
    with Jobs(reached) as jobs:
        parent = jobs.submit(["python", "parent.py"], tmp_path, name="parent")
        log = "\n".join(jobs.follow(parent))
        assert jobs.wait(parent).status == "SUCCEEDED", log
        assert "address http" not in log, "Ray has set its own address, as on the stack"
        (child,) = [line.split()[1] for line in log.splitlines() if line.startswith("child ")]
        assert jobs.wait(child).status == "SUCCEEDED"


CLAIM_RUN = """
import mlflow, os, signal, sys, time
mlflow.set_experiment("claims")
foreign = mlflow.MlflowClient().create_run(
    mlflow.get_experiment_by_name("claims").experiment_id, tags={"mlplatform.job_id": sys.argv[1]}
)
run = mlflow.start_run()
print("foreign", foreign.info.run_id, "own", run.info.run_id, flush=True)
time.sleep(3)  # a kill at the same moment would also end the report
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_gateway_ends_runs_that_the_job_itself_has_reported(environment: Settings, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    (tmp_path / "claim.py").write_text(CLAIM_RUN)
    (tmp_path / "hang.py").write_text("import mlflow, signal\nmlflow.start_run()\nsignal.pause()\n")
    with Jobs(environment) as jobs:
        victim = jobs.submit("python hang.py", tmp_path, name="victim")
        killed = jobs.submit(["python", "claim.py", victim], tmp_path, name="claims")
        log = "\n".join(jobs.follow(killed))
        _, foreign, _, own = next(line for line in log.splitlines() if line.startswith("foreign")).split()

        def status(run_id: str) -> str:
            return str(MlflowClient().get_run(run_id).info.status)

        wait_for(lambda: status(own) == "FAILED", "the gateway to end the killed job's run", 60)
        jobs.stop(victim)
        jobs.wait(victim, timeout_s=60)
        ended = "the gateway to end the victim's run"
        wait_for(lambda: "KILLED" in [run.info.status for run in runs_of(victim)], ended, 60)
        assert status(foreign) == "RUNNING", "another job has named the victim in its tag"
