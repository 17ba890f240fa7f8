"""Programs that start from one template: random numbers and thread pools; neither Ray nor the platform is started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from embedded import completed
from warm import Warm, inherited, running_template

DRAW = """
import json, os, random, secrets, sys, tempfile, uuid
is_loaded = "torch" in sys.modules
import numpy, ray.train, torch
from mlflow.utils.name_utils import _generate_random_name
drawn = {
    "random": random.random(),
    "system random": random.SystemRandom().random(),
    "secrets": secrets.token_hex(),
    "uuid4": str(uuid.uuid4()),
    "uuid1": str(uuid.uuid1()),
    "temporary file": os.path.basename(tempfile.mktemp()),
    "numpy": numpy.random.random(),
    "numpy's generator": numpy.random.default_rng().random(),
    "torch's seed": torch.seed(),
    "mlflow's names": [_generate_random_name() for _name in range(3)],
    "ray's IDs": ray.ObjectRef.from_random().hex(),
}
print(json.dumps([is_loaded, drawn]))
"""

STATES = """
import gc, json, random, sys
import lightning, mlflow, numpy, ray.train, torch
gc.unfreeze()
found = {}
for each in gc.get_objects():
    if type(each) is random.Random:
        found[f"random.Random {each.getstate()}"] = repr(each)
    elif type(each) is numpy.random.RandomState:
        found[f"RandomState {each.get_state(legacy=False)}"] = repr(each)
    elif type(each) is numpy.random.Generator:
        found[f"Generator {each.bit_generator.state}"] = repr(each)
print(json.dumps(found))
"""

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


def output(command: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The last line that a program prints."""
    done = completed(*command, env=environment, stdin=subprocess.DEVNULL, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_programs_draw_different_random_numbers(warm: Warm) -> None:
    (first_is_loaded, first), (second_is_loaded, second) = (
        output(warm.command(["-c", DRAW]), warm.environment()) for _program in range(2)
    )
    assert warm.reasons()[-2:] == [None, None]
    assert first_is_loaded
    assert second_is_loaded
    assert [name for name in first if first[name] == second[name]] == []


def test_generators_of_packages_have_different_states(warm: Warm) -> None:
    first, second = (output(warm.command(["-c", STATES]), warm.environment()) for _program in range(2))
    assert warm.reasons()[-2:] == [None, None]
    assert first
    # A generator with a constant seed has the same state in all processes that start cold.
    constant = output([sys.executable, "-c", STATES], warm.environment())
    same = first.keys() & second.keys() - constant.keys()
    assert [first[state] for state in same] == []


def variables(number: str | None) -> dict[str, str]:
    return {"OMP_NUM_THREADS": number} if number is not None else {}


@pytest.mark.parametrize("number", ["1", "3", None, "3,2"])
def test_pools_have_the_same_sizes_as_after_cold_start(number: str | None, warm: Warm) -> None:
    environment = {**inherited(), **variables(number)}
    _threads, exported, cold = output([sys.executable, "-c", POOLS], environment)
    _threads, also_exported, started_warm = output(warm.command(["-c", POOLS]), warm.environment(variables(number)))
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
    threads, _exported, _pools = output(warm.command(["-c", POOLS]), environment)
    assert warm.reasons()[-1] is None
    assert threads == 1
