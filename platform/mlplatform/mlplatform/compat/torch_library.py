"""Quick exit of forked processes; the base template imports this module after PyTorch's packages. Seen in torch 2.15.

At exit, PyTorch unregisters each of the 200 operator libraries that its packages have registered, in weakref's
finalizers. That writes to memory that a forked process shares with its template, so that each page is copied: a tenth
of the CPU time of a small job. Nothing can call the operators by then, so these finalizers do not run at exit.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import library


def skip_at_exit() -> int:
    """Let the libraries that are registered now remain until the process has ended; return their number."""
    registry: dict[weakref.finalize[..., Any], Any] = weakref.finalize._registry  # type: ignore[attr-defined]
    libraries = [finalizer for finalizer, info in registry.items() if info.func is library._del_library]
    for finalizer in libraries:
        finalizer.atexit = False
    return len(libraries)


skip_at_exit()
