"""`mlplatform stack ci` up to the start of its stack: a recording program stands in for Docker.

`tests/stack/test_ci.py` runs a job with the real one.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import wait_for

from mlplatform_stack import ci
from mlplatform_stack.settings import StackSettings

CHECKOUT = Path(__file__).parents[3]

# Answers the checks of the host; `up` prints, and then fails or waits until it is killed.
DOCKER = """\
#!/bin/sh
echo "${STACK_PREFIX-unset} $*" >>"$CALLS"
case "$*" in
  "version"*) echo 28.0.0 ;;
  "compose version"*) echo 2.40.0 ;;
  "info --format {{json .}}") echo '{"DockerRootDir": "/", "Runtimes": {}}' ;;
  "image inspect "*) echo sha256:0 ;;
  "network ls --quiet") echo 1 ;;
  "network inspect 1") echo '[{"Name": "other", "IPAM": {"Config": [{"Subnet": "10.213.80.0/23"}]}}]' ;;
  *" config "*) echo '{"services": {}}' ;;
  *" ps --all --format {{.Service}}") echo ray-head ;;
  *" logs "*) echo "the last words" ;;
  *" up "*) [ -n "$WAITS" ] && exec sleep 60; exit 1 ;;
esac
"""


class Run:
    """`mlplatform stack ci` in an own checkout, and the calls that Docker gets."""

    def __init__(self, folder: Path) -> None:
        self.root, self.job, self.logs = folder / "checkout", folder / "job", folder / "logs"
        self.calls_file = folder / "calls"
        self.calls_file.touch()
        self.root.mkdir()
        for name in ("compose", "docker", "platform", ".env.example"):
            (self.root / name).symlink_to(CHECKOUT / name)
        self.job.mkdir()

    def start(self, **variables: str) -> subprocess.Popen[str]:
        words = [f"{self.job} -- true", "true", "--logs", str(self.logs), "--root", str(self.root)]
        command = [sys.executable, "-m", "mlplatform", "stack", "ci", *words]
        env = {**os.environ, "CALLS": str(self.calls_file), **variables}
        return subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines()

    def wait_for_call(self, word: str) -> None:
        wait_for(lambda: any(f" {word} " in call for call in self.calls), f"a call of {word}")

    def is_removed(self) -> bool:
        """True if the last calls removed containers and volumes, and the files are gone."""
        down, volume = self.calls[-2:]
        prefix = volume.rpartition(" ")[2].removesuffix("food11")
        return " down --volumes " in down and prefix.startswith("ci-") and not (self.root / ci.FOLDER).exists()


@pytest.fixture
def run(tmp_path: Path, program: Callable[[str, str], Path]) -> Run:
    program("docker", DOCKER)
    return Run(tmp_path)


def test_failed_start_is_reported_and_removed(run: Run) -> None:
    process = run.start(STACK_PREFIX="mine-", COMPOSE_PROJECT_NAME="mine")
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1, error
    assert "The stack did not become healthy" in error
    assert "Traceback" not in error
    assert "the last words" in (run.logs / "ray-head.log").read_text()
    assert run.is_removed()
    assert {call.partition(" ")[0] for call in run.calls} == {"unset"}, "the caller's own stack was touched"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_start_is_removed(run: Run, number: signal.Signals) -> None:
    process = run.start(WAITS="1")
    run.wait_for_call("up")
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 128 + number, error
    assert "Traceback" not in error
    assert run.is_removed()


def test_stack_of_killed_run_is_removed_first(run: Run) -> None:
    process = run.start(WAITS="1")
    run.wait_for_call("up")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)
    left = StackSettings.load(run.root / ci.FOLDER / ".env")
    run.calls_file.write_text("")
    run.start().communicate(timeout=120)
    down, volume = run.calls[:2]
    assert " down --volumes " in down
    assert volume.endswith(f" volume rm --force {left.food11_volume}")
    assert run.is_removed()


def test_second_run_in_one_checkout_waits_for_end_of_first(run: Run) -> None:
    first = run.start(WAITS="1")
    run.wait_for_call("up")
    second = run.start()
    assert second.stderr
    assert f"Another `make ci` uses {run.root}" in second.stderr.readline()
    assert (run.root / ci.FOLDER).is_dir(), "the first run's stack was removed"
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=120)
    assert "The stack did not become healthy" in second.communicate(timeout=120)[1]
    assert run.is_removed()


def test_stack_takes_images_from_checkout_and_sizes_for_small_runner(run: Run) -> None:
    own = "FOOD11_VOLUME=food11\nS3_IMAGE=mine/s3\nWORKER_MEMORY=64g\nRAY_PORT=8265\n"
    own += "S3_ENDPOINT_URL=https://s3.example.org\n"
    own += "BACKUP_TO=/mnt/backups\n"
    (run.root / ".env").write_text(f"{own}CLUSTER_NETWORK=10.213.80\n")
    process = run.start(WAITS="1")
    run.wait_for_call("up")
    settings = StackSettings.load(run.root / ci.FOLDER / ".env")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert (settings.s3_image, settings.worker_memory, settings.worker_gpus) == ("mine/s3", 3 << 30, 0)
    assert settings.stack_prefix == f"ci-{settings.ray_port}-"
    assert settings.food11_volume == f"{settings.stack_prefix}food11"
    assert settings.ray_port != 8265
    assert settings.s3_endpoint_url == "", "its objects would be among those of the stack"
    assert settings.backup_to == "", "its backups would be among those of the stack"
    assert settings.cluster_network == "10.213.82", "the first that overlaps with no network of Docker"


@pytest.mark.parametrize(("status", "expected"), [(3, 3), (-9, 137)])
def test_status_of_signal_is_that_of_shell(status: int, expected: int) -> None:
    assert ci._of_shell(status) == expected
