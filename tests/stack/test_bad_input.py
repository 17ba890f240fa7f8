"""Mistakes on the host are answered in one clear sentence, with exit code above 0 and nothing half-made."""

from __future__ import annotations

import socket
from pathlib import Path

from host import Stack, run


def refusal(stack: Stack, *arguments: str, **options: object) -> str:
    """Error output of a refused `make up`; it must start nothing that was not running before."""
    before = {entry["Id"] for entry in stack.containers()}
    result = run(
        str(stack.root / ".venv/bin/mlplatform"), "stack", "up", *arguments, cwd=stack.root, check=False, **options
    )
    assert result.returncode != 0, result.stdout
    assert "Traceback" not in result.stderr, result.stderr
    assert {entry["Id"] for entry in stack.containers()} == before
    return result.stderr


def environment(**values: str) -> dict[str, str]:
    from mlplatform.settings.environment import environment

    return {**environment(), **values}


def test_unknown_accelerator_lists_the_valid_ones(checkout: Stack) -> None:
    said = refusal(checkout, env=environment(ACCELERATOR="tpu"))
    assert "ACCELERATOR" in said
    assert all(name in said for name in ("'tpu'", "cpu", "cuda", "rocm")), said


def test_taken_port_is_named_with_its_setting(checkout: Stack) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refusal(checkout, env=environment(MLFLOW_PORT=str(port), STACK_PREFIX="other-"))
    assert str(port) in said
    assert "MLFLOW_PORT" in said


def test_address_beyond_loopback_is_refused(checkout: Stack) -> None:
    said = refusal(checkout, env=environment(BIND_ADDRESS="0.0.0.0"))
    assert "BIND_ADDRESS" in said
    assert "0.0.0.0" in said


def test_too_little_disk_says_how_much_and_what_to_do(checkout: Stack) -> None:
    said = refusal(checkout, env=environment(DISK_NEEDED_GB="999999"))
    assert "DISK_NEEDED_GB=999999" in said
    assert "free" in said


def test_engine_that_does_not_run_is_said_to_be(checkout: Stack, tmp_path: Path) -> None:
    result = run(
        *(str(checkout.root / ".venv/bin/mlplatform"), "stack", "up"),
        cwd=checkout.root,
        check=False,
        env=environment(DOCKER_HOST=f"unix://{tmp_path}/docker.sock"),
    )
    assert result.returncode != 0
    assert "Docker is not running" in result.stderr
    assert "Traceback" not in result.stderr


def test_unknown_half_lists_the_known_ones(checkout: Stack) -> None:
    said = refusal(checkout, "--only", "grafana")
    assert "ONLY=grafana" in said
    assert "tracking, ray" in said


def test_rocm_image_without_its_index_says_what_to_set(checkout: Stack) -> None:
    result = checkout.compose("build", "ray-head", env=environment(ACCELERATOR="rocm", TORCH_INDEX_URL=""), check=False)
    assert result.returncode != 0
    assert "TORCH_INDEX_URL" in result.stdout + result.stderr


def test_env_is_written_once_and_never_overwritten(checkout: Stack) -> None:
    files = [checkout.root / ".env", *sorted((checkout.root / "secrets").iterdir())]
    before = {file: file.read_bytes() for file in files}
    checkout.make("env")
    assert {file: file.read_bytes() for file in files} == before
