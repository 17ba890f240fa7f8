"""The exit of processes that have imported PyTorch's packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import weakref
import torch, torchvision
from mlplatform.compat import torch_library

class Kept:
    pass

kept = Kept()
weakref.finalize(kept, print, "a finalizer of the program")
print(torch_library.skip_at_exit() > 100)
left = [info.func for finalizer, info in weakref.finalize._registry.items() if finalizer.atexit]
print([each is print for each in left])
"""


@pytest.mark.nightly
def test_only_finalizers_of_operator_libraries_are_skipped_at_exit() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True", "[True]", "a finalizer of the program"], done.stderr
