"""User errors on the host: one clear sentence, a non-zero exit code, and nothing half done."""

from __future__ import annotations

import socket

from host import Stack, run

from mlplatform.settings.environment import environment


def refusal(stack: Stack, *arguments: str, **values: str) -> str:
    """Error output of a rejected `make up` with other values in `.env`, after checking that it started nothing."""
    before = {entry["Id"] for entry in stack.containers()}
    command = (str(stack.root / ".venv/bin/mlplatform"), "stack", "up", *arguments)
    with stack.changed(**values):
        result = run(*command, cwd=stack.root, check=False)
    assert result.returncode != 0, result.stdout
    assert "Traceback" not in result.stderr, result.stderr
    assert {entry["Id"] for entry in stack.containers()} == before
    return result.stderr


def test_port_in_use_error_names_port_and_setting(checkout: Stack) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = refusal(checkout, MLFLOW_PORT=str(port), STACK_PREFIX="other-")
    assert str(port) in error
    assert "MLFLOW_PORT" in error


def test_unknown_only_value_error_lists_valid_values(checkout: Stack) -> None:
    error = refusal(checkout, "--only", "grafana")
    assert "ONLY=grafana" in error
    assert "tracking, ray" in error


def test_rocm_build_without_index_names_setting(checkout: Stack) -> None:
    variables = {**environment(), "ACCELERATOR": "rocm", "TORCH_INDEX_URL": ""}
    result = checkout.compose("build", "ray-head", env=variables, check=False)
    assert result.returncode != 0
    assert "TORCH_INDEX_URL" in result.stdout + result.stderr
