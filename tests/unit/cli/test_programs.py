"""Commands for programs: each result as JSON, and exit codes that do not change."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from command_line import Serve, mlplatform, refusal

from mlplatform import errors
from mlplatform.cli.app import app

WITHOUT_JSON = {
    "text or a protocol": [("logs",), ("ssh",), ("mcp",), ("env",), ("local", "env"), ("s3-credentials",)],
    "talks to a person": [("login",), ("local", "demo")],
    "has no result but its exit code": [
        *(("logout",), ("jobs", "delete"), ("teams", "remove"), ("tokens", "revoke")),
        *(("secrets", "put"), ("secrets", "remove"), ("local", "up"), ("local", "down")),
    ],
    "verb of the Makefile, which reports its steps": [
        *(("stack", name) for name in ("env", "up", "ci", "backup", "restore", "upgrade", "perform-upgrade", "rotate")),
        *(("stack", name) for name in ("bundle", "host-token", "join", "leave", "remove-host")),
    ],
}

LISTS = {
    ("audit",): '{"entries": []}',
    ("dev", "list"): "[]",
    ("jobs",): "[]",
    ("jobs", "list"): "[]",
    ("people", "list"): '{"people": []}',
    ("queue",): '{"at": null, "waiting": 0, "entries": []}',
    ("secrets", "list"): '{"secrets": []}',
    ("teams", "list"): '{"teams": []}',
    ("tokens", "list"): '{"tokens": []}',
    ("usage",): '{"since": 0, "until": 1, "entries": [], "next": null}',
}

JOB: dict[str, Any] = {"submission_id": "t-1", "status": "SUCCEEDED", "entrypoint": "true", "message": "It ended."}
WHOLE = {**JOB, "state": "SUCCEEDED", "max_restarts_on_loss": 3, "max_restarts_on_failure": 0, "attempts": []}

RESULTS: dict[tuple[str, ...], dict[str, Any]] = {
    ("jobs", "show", "t-1"): WHOLE,
    ("wait", "t-1"): JOB,
    ("stop", "t-1"): {"stopped": True},
    ("resume", "t-1"): {"submission_id": "t-1", "message": "It waits."},
    ("notify",): {"url": "mailto:ada@example.org"},
    ("dev", "open", "--job", "t-1"): {"address": "http://lab/"},
}


def commands(group: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words; a group that is a command by itself is one."""
    if group.callback is not None and not getattr(group, "no_args_is_help", False):
        yield words, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, *words, name)


def gateway(job: dict[str, Any]) -> Callable[[str, str], tuple[int, str]]:
    """A gateway that has one job."""
    answers: dict[str, Any] = {
        "/api/jobs/": {"submission_id": "t-1"},
        "/api/jobs/t-1": job,
        "/api/jobs/t-1/stop": {"stopped": True},
        "/platform/jobs/t-1": {**WHOLE, **job},
        "/platform/jobs/t-1/resume": {"submission_id": "t-1", "limit_s": None, "message": "It waits."},
        "/platform/jobs/t-1/lab": {"address": "http://lab/"},
        "/platform/webhook": {"url": "mailto:ada@example.org"},
    }
    return lambda method, path: (200, json.dumps(answers.get(path, {})))


def test_every_command_with_a_result_has_json() -> None:
    found = dict(commands(typer.main.get_command(app)))
    without = {
        words
        for words, command in found.items()
        if "--json" not in {option for parameter in command.params for option in parameter.opts}
    }
    assert without == {words for listed in WITHOUT_JSON.values() for words in listed}


@pytest.mark.parametrize("words", LISTS)
def test_empty_list_has_no_line_of_json(words: tuple[str, ...], serve: Serve) -> None:
    address = serve(lambda method, path: (200, LISTS[words]))
    done = mlplatform(*words, "--json", RAY_ADDRESS=address)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize("words", RESULTS)
def test_result_is_one_line_of_json(words: tuple[str, ...], serve: Serve) -> None:
    done = mlplatform(*words, "--json", RAY_ADDRESS=serve(gateway(JOB)))
    assert (json.loads(done.stdout), done.stderr, done.returncode) == (RESULTS[words], "", 0)
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(("status", "code"), [("SUCCEEDED", 0), ("FAILED", 3), ("STOPPED", 4)])
@pytest.mark.parametrize("command", ["submit", "wait"])
def test_exit_code_tells_how_the_job_ended(command: str, status: str, code: int, serve: Serve, tmp_path: Path) -> None:
    script, job = tmp_path / "train.py", {**JOB, "status": status}
    script.touch()
    words = (command, "t-1" if command == "wait" else str(script))
    done = mlplatform(*words, "--json", RAY_ADDRESS=serve(gateway(job)))
    assert (json.loads(done.stdout), done.returncode) == (job, code), done.stderr
    assert (f"Job t-1 ended {status}: It ended." in done.stderr) == (code != 0)
    assert mlplatform(*words, RAY_ADDRESS=serve(gateway(job))).returncode == code


def test_submission_without_wait_prints_the_waiting_job(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    job = {**JOB, "status": "PENDING"}
    words = ("submit", str(tmp_path / "train.py"), "--no-wait", "--json")
    done = mlplatform(*words, RAY_ADDRESS=serve(gateway(job)))
    assert (json.loads(done.stdout), done.returncode) == (job, 0), done.stderr
    assert done.stderr.startswith("Submitted job t-1;")


@pytest.mark.parametrize(("answer", "code"), [(400, 1), (403, 6), (422, 5), (503, 7)])
def test_exit_code_tells_why_a_submission_was_rejected(answer: int, code: int, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    address = serve(lambda method, path: (answer, "No node has 9 GPUs."))
    assert refusal("submit", str(tmp_path / "train.py"), "--gpus", "9", RAY_ADDRESS=address)[1] == code


def test_exit_codes_are_those_in_the_document() -> None:
    text = (Path(__file__).parents[3] / "docs" / "people.md").read_text()
    documented = set(map(int, re.findall(r"^\| (\d+) \|", text, flags=re.M)))
    tree = {error.exit_code for error in vars(errors).values() if isinstance(error, type)}
    assert documented == {0, 130, *tree}
