"""Thread pools of numerical libraries, in templates and in processes that are forked from them.

The libraries size their pools by OMP_NUM_THREADS when they are loaded. Ray sets it to 1 for the drivers of jobs, for
supervisors and for workers with one CPU or less, so the pools of templates have one thread. Only a process with another
number resizes them, which takes 0.2 s of CPU time: the libraries are searched for, and each OpenBLAS starts its threads
again, which wait busily for 27 ms and longer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

NUMBER = "OMP_NUM_THREADS"

_limits: list[Any] = []
"""Changes of the pools in this process and in those that it was forked from, which know the original sizes."""

_torch_threads: list[int] = []


def shrink() -> None:
    """Give each pool of the loaded libraries one thread; in a template, after its imports."""
    torch = sys.modules.get("torch")
    if torch:
        _torch_threads.append(torch.get_num_threads())
    with suppress(ImportError):  # programs that want a number start cold then
        _limit(1)
    # Later: PyTorch's pool is OpenMP's, whose original size is recorded first.
    if torch:
        torch.set_num_threads(1)


def resize(environment: Mapping[str, str]) -> None:
    """Give each pool the number of threads that it would have if the libraries were loaded now.

    Raises:
        ImportError: threadpoolctl is not installed.
    """
    wanted = environment.get(NUMBER, "")
    if wanted == "1" and _limits:
        return
    torch = sys.modules.get("torch")
    if wanted.isdecimal():
        # Neither OpenBLAS nor PyTorch starts more threads than there are processors.
        number = min(int(wanted), len(os.sched_getaffinity(0)))
        _limit(number)
    else:
        number = _torch_threads[0] if _torch_threads else 1
        for limit in reversed(_limits):
            limit.restore_original_limits()
    if torch:
        torch.set_num_threads(number)


def _limit(number: int) -> None:
    if "numpy" in sys.modules:
        variables = dict(os.environ)
        from threadpoolctl import threadpool_limits

        # Its import sets KMP_DUPLICATE_LIB_OK, which the program's children would inherit.
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        _limits.append(threadpool_limits(number))
