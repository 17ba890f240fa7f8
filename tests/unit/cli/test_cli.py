"""Invalid input at the command line: one sentence on stderr, no traceback, a non-zero exit code."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Serve, mlplatform, refusal


@pytest.mark.parametrize(
    ("words", "variables", "named", "status"),
    [
        (("submit", "none.py"), {}, "no file none.py", 1),
        (("models",), {}, "MLFLOW_TRACKING_URI is not set", 2),
        (("jobs",), {"MLPLATFORM_ATTEMPT": "first"}, "MLPLATFORM_ATTEMPT='first'", 2),
    ],
    ids=["missing job file", "models without registry", "invalid setting"],
)
def test_fault_is_named(words: tuple[str, ...], variables: dict[str, str], named: str, status: int) -> None:
    error, code = refusal(*words, **variables)
    assert named in error
    assert code == status


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("{folder}",), "job.toml is not there"),
        (("{folder}/train.py", "--env", "SEED"), "'SEED' is not a pair"),
        (("{folder}/train.py", "--gpus=-1"), "gpus = -1.0"),
        (("{folder}/bad/train.py",), "unknown key 'gpu'"),
    ],
)
def test_invalid_submission_is_rejected(words: tuple[str, ...], named: str, tmp_path: Path, closed_port: int) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "job.toml").write_text("gpu = 1\n")
    (tmp_path / "bad" / "train.py").touch()
    (tmp_path / "train.py").touch()
    address = f"http://127.0.0.1:{closed_port}"
    error, code = refusal("submit", *(word.format(folder=tmp_path) for word in words), RAY_ADDRESS=address)
    assert named in error
    assert code == 1


@pytest.mark.parametrize(
    ("ending", "named"), [("\n", "RAY_ADDRESS) does not answer"), ("\n/x", "use an address without control characters")]
)
def test_newline_in_address_causes_no_traceback(ending: str, named: str, closed_port: int) -> None:
    error, code = refusal("jobs", RAY_ADDRESS=f"http://127.0.0.1:{closed_port}{ending}")
    assert named in error
    assert code


def test_unknown_option_after_script_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = mlplatform("submit", str(tmp_path / "train.py"), "--epochs", "8")
    assert done.returncode == 2
    assert "--epochs" in done.stderr


def test_missing_demo_file_is_named(tmp_path: Path) -> None:
    error, code = refusal("local", "demo", "none.py", MLPLATFORM_HOME=str(tmp_path))
    assert "no file none.py" in error
    assert code == 1
    assert list(tmp_path.iterdir()) == []


def test_job_id_is_not_truncated_in_narrow_terminal(serve: Serve) -> None:
    job_id = f"{'a' * 40}-20261122-114353-7c48"
    details = {"submission_id": job_id, "status": "RUNNING", "entrypoint": f"python {'a' * 40}.py", "metadata": None}
    done = mlplatform("jobs", RAY_ADDRESS=serve(lambda method, path: (200, json.dumps([details]))), COLUMNS="80")
    assert job_id in done.stdout.split()


@pytest.mark.parametrize("words", [("jobs",), ("logs", "a"), ("wait", "a"), ("stop", "a"), ("top",)])
def test_unreachable_ray_address_is_named(words: tuple[str, ...], closed_port: int) -> None:
    error, code = refusal(*words, RAY_ADDRESS=f"http://127.0.0.1:{closed_port}")
    assert f"http://127.0.0.1:{closed_port} (RAY_ADDRESS) does not answer" in error
    assert code == 7


@pytest.mark.parametrize("words", [("audit",), ("usage",), ("top",)])
def test_server_that_is_not_the_gateway_is_named(words: tuple[str, ...], serve: Serve) -> None:
    error, code = refusal(*words, RAY_ADDRESS=serve(lambda method, path: (404, "Not Found")))
    assert "is not the platform's gateway; set RAY_ADDRESS to the gateway's address." in error
    assert code == 1


@pytest.mark.parametrize("address", ["ray-head:6379", "auto", "ray://127.0.0.1:10001", "localhost:8265"])
def test_address_of_another_protocol_is_named(address: str) -> None:
    error, code = refusal("jobs", RAY_ADDRESS=address)
    assert error.startswith(f"RAY_ADDRESS={address!r} does not begin with http://")
    assert code == 2


@pytest.mark.parametrize("variables", [{}, {"RAY_ADDRESS": "10.0.0.1:6379"}])
def test_processes_of_jobs_use_the_gateway_of_their_node(
    variables: dict[str, str], serve: Serve, closed_port: int
) -> None:
    gateway = serve(lambda method, path: (200, listing(2)))
    assert len(ids(mlplatform("jobs", MLPLATFORM_GATEWAY=gateway, **variables).stdout)) == 2
    own = {"RAY_ADDRESS": gateway, "MLPLATFORM_GATEWAY": f"http://127.0.0.1:{closed_port}"}
    assert len(ids(mlplatform("jobs", **own).stdout)) == 2, "an HTTP address that a job sets counts"


@pytest.mark.parametrize("command", ["python t.py dirs=[/mnt/a,/mnt/b]", "python t.py opt=[adam,sgd] :fire:"])
def test_job_command_is_listed_verbatim(command: str, serve: Serve) -> None:
    job = {"submission_id": "t-1", "type": "SUBMISSION", "status": "RUNNING", "entrypoint": command, "message": ""}
    done = mlplatform("jobs", RAY_ADDRESS=serve(lambda method, path: (200, json.dumps([job]))), COLUMNS="200")
    assert done.stderr == ""
    assert command in done.stdout


@pytest.mark.parametrize("words", [("jobs", "--json"), ("jobs", "list", "--json")])
def test_jobs_are_listed_as_json(words: tuple[str, ...], serve: Serve) -> None:
    done = mlplatform(*words, RAY_ADDRESS=serve(lambda method, path: (200, listing(2))))
    assert [json.loads(line) for line in done.stdout.splitlines()] == json.loads(listing(2))[::-1]


@pytest.mark.parametrize(
    ("answer", "named"), [('{"teams": [{"name": "a"}]}', "teams.0.share_gpus"), ("[]", "body"), ("<html>", "body")]
)
def test_answer_of_another_version_is_named(answer: str, named: str, serve: Serve) -> None:
    error, code = refusal("teams", "list", RAY_ADDRESS=serve(lambda method, path: (200, answer)))
    assert f"to /platform/teams has another {named} than this client expects" in error
    assert code == 1


OF_PLATFORM = {"state": "RUNNING", "max_restarts_on_loss": 3, "max_restarts_on_failure": 0}
"""Additions of the platform to Ray's details of a job."""


def listing(count: int) -> str:
    """The gateway's list of `count` jobs of two users; every other job is RUNNING."""
    jobs = [
        {
            "submission_id": f"train-{number:03}",
            "status": "RUNNING" if number % 2 else "SUCCEEDED",
            "entrypoint": "python train.py",
            "start_time": 1_700_000_000_000 + number,
            "metadata": {"user": "ada" if number % 3 else "bob"},
        }
        for number in range(count)
    ]
    return json.dumps(jobs)


def ids(output: str) -> list[str]:
    return re.findall(r"train-\d+", output)


@pytest.mark.parametrize("words", [["jobs"], ["jobs", "list"]])
def test_jobs_list_shows_latest_20_or_all(words: list[str], serve: Serve) -> None:
    address = serve(lambda method, path: (200, listing(30)))
    done = mlplatform(*words, RAY_ADDRESS=address)
    assert ids(done.stdout) == [f"train-{number:03}" for number in range(29, 9, -1)]
    assert "The latest 20 of 30 jobs; --all lists every one." in done.stdout
    assert len(ids(mlplatform(*words, "--all", RAY_ADDRESS=address).stdout)) == 30


def test_jobs_are_listed_by_state_and_user(serve: Serve) -> None:
    address = serve(lambda method, path: (200, listing(12)))
    printed = mlplatform("jobs", "--state", "running", "--user", "bob", RAY_ADDRESS=address).stdout
    assert ids(printed) == ["train-009", "train-003"]


@pytest.mark.parametrize("words", [["jobs"], ["jobs", "show"]])
def test_job_is_shown_by_id(words: list[str], serve: Serve, tmp_path: Path) -> None:
    job = json.loads(listing(1))[0]

    def answer(method: str, path: str) -> tuple[int, str]:
        if path == "/platform/jobs/train-000":
            return 200, json.dumps({**job, **OF_PLATFORM, "attempts": []})
        return (200, json.dumps(job)) if path == "/api/jobs/train-000" else (200, "[]")

    done = mlplatform(*words, "train-000", RAY_ADDRESS=serve(answer), MLPLATFORM_STORAGE=str(tmp_path))
    assert "Status" in done.stdout, done.stderr
    assert "SUCCEEDED" in done.stdout


def shown_job(serve: Serve, folder: Path, **fields: Any) -> subprocess.CompletedProcess[str]:
    """Run `mlplatform jobs` for a job without attempts; fields are other ones of it."""
    text = json.dumps({**json.loads(listing(1))[0], **OF_PLATFORM, "attempts": [], **fields})
    address = serve(lambda method, path: (200, text))
    return mlplatform("jobs", "train-000", RAY_ADDRESS=address, MLPLATFORM_STORAGE=str(folder))


@pytest.mark.parametrize(("limit", "shown"), [({"limit_s": 14400.0}, ["4 h"]), ({"limit_s": None}, []), ({}, [])])
def test_time_limit_of_job_is_shown(
    limit: dict[str, float | None], shown: list[str], serve: Serve, tmp_path: Path
) -> None:
    done = shown_job(serve, tmp_path, **limit)
    assert re.findall(r"^Limit +(.+)", done.stdout, re.MULTILINE) == shown, done.stderr


HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b2J\x85\x7f\rover\u202eesrever\u2066 \ud800 end"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize(
    "words", [["jobs"], ["jobs", "train-000"], ["logs", "train-000"], ["top"], ["wait", "train-000"], ["audit"]]
)
def test_values_of_jobs_cannot_control_the_terminal(words: list[str], serve: Serve, tmp_path: Path) -> None:
    job = {**json.loads(listing(1))[0], "entrypoint": HOSTILE, "message": HOSTILE, "status": "FAILED"}
    job["metadata"] = {"user": HOSTILE}
    attempt = {"number": 1, "outcome": "LOST", "reason": HOSTILE, "node": HOSTILE, "ended": None}
    attempt["created"] = "2026-11-21T10:00:00+00:00"
    use = {"nodes": [], "gpus": [], "running": 1}
    use["jobs"] = [{"id": "a", "user": HOSTILE, "command": HOSTILE, "cpus": None, "memory": None, "gpus": []}]
    entry = dict.fromkeys(("principal", "kind", "address", "verb", "object"), HOSTILE)
    entry |= {"sequence": 1, "time": "2026-11-21T10:00:00+00:00", "before": None, "after": {"user": HOSTILE}}
    answers = {
        "/platform/jobs/train-000": {**job, **OF_PLATFORM, "attempts": [attempt]},
        "/api/jobs/train-000": job,
        "/api/jobs/train-000/logs": {"logs": HOSTILE},
        "/platform/utilisation": use,
        "/platform/audit": {"entries": [entry]},
    }

    def answer(method: str, path: str) -> tuple[int, str]:
        return 200, json.dumps(answers.get(path.partition("?")[0], [job]))

    done = mlplatform(*words, RAY_ADDRESS=serve(answer), MLPLATFORM_STORAGE=str(tmp_path), COLUMNS="400")
    assert "Traceback" not in done.stderr, done.stderr
    assert "overesrever \ufffd end" in done.stdout + done.stderr
    assert not CONTROLS.findall(done.stdout + done.stderr)


def test_value_with_lines_does_not_look_like_facts(serve: Serve, tmp_path: Path) -> None:
    done = shown_job(serve, tmp_path, status="FAILED", entrypoint="false\nStatus   SUCCEEDED")
    assert re.findall(r"^Status +(\w+)", done.stdout, re.MULTILINE) == ["FAILED"]


def test_notice_is_shown_below_attempt_that_leaves(serve: Serve, tmp_path: Path) -> None:
    fields = {"reason": None, "node": "n", "created": "2026-11-21T10:00:00+00:00", "leave_why": "Team vision waits."}
    fields["leave_by"] = "2026-11-21T10:02:00+00:00"
    left = {**fields, "number": 1, "outcome": "PREEMPTED", "ended": "2026-11-21T10:01:00+00:00"}
    leaves = {**fields, "number": 2, "outcome": None, "ended": None}
    done = shown_job(serve, tmp_path, attempts=[left, leaves])
    shown = [line.strip() for line in done.stdout.splitlines()]
    first = next(number for number, line in enumerate(shown) if line.startswith("Attempt 1"))
    assert shown[first + 1].startswith("Attempt 2"), done.stderr
    assert shown[first + 2] == "asked to leave by 2026-11-21 10:02:00: Team vision waits."


def test_job_is_deleted(serve: Serve) -> None:
    asked = []

    def answer(method: str, path: str) -> tuple[int, str]:
        asked.append((method, path))
        return 200, json.dumps({"deleted": True})

    done = mlplatform("jobs", "delete", "train-000", RAY_ADDRESS=serve(answer))
    assert done.stdout == "Job train-000 is deleted.\n", done.stderr
    assert asked == [("DELETE", "/api/jobs/train-000")]


def test_env_of_stopped_platform_names_up_command(tmp_path: Path) -> None:
    done = mlplatform("local", "status", MLPLATFORM_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "mlplatform local up" in done.stdout
    error, code = refusal("local", "env", MLPLATFORM_HOME=str(tmp_path))
    assert "mlplatform local up" in error
    assert code == 7


def test_env_output_is_valid_shell(tmp_path: Path) -> None:
    folder = str(tmp_path / "it's a folder; $HOME")
    printed = mlplatform("env", cwd=tmp_path, MLPLATFORM_STORAGE=folder, RAY_AUTH_TOKEN_PATH="/secrets/token").stdout
    words = shlex.split(printed)
    assert f"MLPLATFORM_STORAGE={folder}" in words
    assert "RAY_AUTH_MODE=token" in words
    assert "RAY_AUTH_TOKEN_PATH=/secrets/token" in words


def test_env_on_host_names_person(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MLPLATFORM_VERSION=1\n")
    assert "MLPLATFORM_USER=ada" in shlex.split(mlplatform("env", cwd=tmp_path, LOGNAME="ada").stdout)


def test_env_on_host_names_mlflows_account_until_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MLPLATFORM_VERSION=1\n")
    account, own = tmp_path / "secrets/mlflow_person", tmp_path / "home/.mlflow/credentials"
    for file, text in ((account, "[mlflow]\n"), (own, "[mlflow]\nmlflow_tracking_username = other\n")):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    printed = mlplatform("env", cwd=tmp_path, HOME=str(tmp_path / "home"))
    assert f"install -D -m 600 {account} {own}" in printed.stderr
    assert "install" not in printed.stdout
    own.write_text(account.read_text())
    assert mlplatform("env", cwd=tmp_path, HOME=str(tmp_path / "home")).stderr == ""


@pytest.mark.parametrize("words", [["models"], ["data", "list"]])
def test_missing_python_package_is_named(words: list[str], tmp_path: Path) -> None:
    without = "import sys; sys.modules.update(mlflow=None, boto3=None); from mlplatform.cli.app import main; main()"
    env = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db", "MLPLATFORM_DATASETS": "s3://data"}
    command = [sys.executable, "-c", without, *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"This needs the Python package \w+, which is not installed here; run .*\n", done.stderr)


def test_missing_package_of_an_extra_is_named() -> None:
    without = "import sys; sys.modules['mcp'] = None; from mlplatform.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", without, "mcp"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "This needs the Python package mcp, which is not installed here; run `pip install mcp`, or install "
        "mlplatform[mcp].\n",
    )


def test_help_imports_no_heavy_modules() -> None:
    # Beyond what mlplatform.pth imports whenever Python starts, which must be little as well.
    program = (
        "import sys; start = set(sys.modules); print(*start); "
        "import mlplatform.cli.app; print(*set(sys.modules) - start)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    at_start, loaded = (
        {name.split(".")[1] for name in line.split() if name.startswith("mlplatform.")}
        for line in done.stdout.splitlines()
    )
    assert at_start == {"compat", "training"}, "each start of Python would also import these modules"
    assert loaded == {"cli", "errors"}, "--help would also import these modules"


def test_tables_are_not_cut_for_programs(serve: Serve) -> None:
    jobs = json.loads(listing(2))
    for job in jobs:
        job["submission_id"] += "-" + "x" * 90
        job["entrypoint"] = f"python {'long/' * 40}train.py\n--last word"
    address = serve(lambda method, path: (200, json.dumps(jobs)))
    done = mlplatform("jobs", RAY_ADDRESS=address, COLUMNS="40", FORCE_COLOR="1")
    rows = done.stdout.splitlines()[1:]
    assert [row.split()[1] for row in rows] == ["RUNNING", "SUCCEEDED"], done.stderr
    assert all(f"{'long/' * 40}train.py --last word" in row for row in rows)


def test_all_tables_of_commands_are_printed_in_one_place() -> None:
    import mlplatform.cli

    files = sorted(Path(mlplatform.cli.__path__[0]).glob("*.py"))
    assert [file.name for file in files if "Table(" in file.read_text()] == ["output.py"]
