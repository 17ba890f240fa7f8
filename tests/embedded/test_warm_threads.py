"""Thread pools of programs that start from a template; neither Ray nor the platform is started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from warm import Warm, inherited, running_template

POOLS = """
import json, os
threads, variables = os.listdir("/proc/self/task"), dict(os.environ)
import numpy, torch
from threadpoolctl import threadpool_info
pools = {os.path.basename(pool["filepath"]): pool["num_threads"] for pool in threadpool_info()}
print(json.dumps([len(threads), "KMP_DUPLICATE_LIB_OK" in variables, {"torch": torch.get_num_threads(), **pools}]))
"""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A template with the real packages."""
    with running_template(tmp_path_factory.mktemp("warm") / "sockets") as running:
        yield running


def pools(command: Sequence[str], environment: Mapping[str, str]) -> Any:
    done = subprocess.run(
        [*command, "-c", POOLS],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def variables(number: str | None) -> dict[str, str]:
    return {"OMP_NUM_THREADS": number} if number is not None else {}


@pytest.mark.parametrize("number", ["1", "3", None, "3,2"])
def test_pools_have_the_same_sizes_as_after_cold_start(number: str | None, warm: Warm) -> None:
    environment = {**inherited(), **variables(number)}
    _threads, exported, cold = pools([sys.executable], environment)
    _threads, also_exported, started_warm = pools(warm.command([]), warm.environment(variables(number)))
    assert warm.reasons()[-1] is None
    # A test before this one may have set it here, where all processes inherit it.
    assert also_exported == exported
    # The template has loaded more libraries than the program.
    assert {name: started_warm[name] for name in cold} == cold
    assert "torch" in cold
    assert any("openblas" in name for name in cold)


def test_program_with_one_thread_starts_no_pool(warm: Warm) -> None:
    # Each OpenBLAS would start its threads, which wait busily for 27 ms.
    environment = warm.environment({"OMP_NUM_THREADS": "1"})
    threads, _exported, _pools = pools(warm.command([]), environment)
    assert warm.reasons()[-1] is None
    assert threads == 1
