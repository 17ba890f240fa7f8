"""Limits of the kernel below which jobs or services fail with messages that do not name them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlplatform.stack.checks.finding import Finding, Place


@dataclass(frozen=True)
class _Least:
    """Least value of a kernel setting, below /proc/sys, and the reason for it."""

    path: str
    least: int
    why: str

    @property
    def name(self) -> str:
        return self.path.replace("/", ".")


_LEAST = (
    _Least(
        "fs/inotify/max_user_instances",
        256,
        "Templates of the warm start and JupyterLab watch files with one instance per process, counted per user.",
    ),
    _Least(
        "fs/inotify/max_user_watches",
        65536,
        "Templates of the warm start watch the folders of 6,500 files each, and start programs cold without that.",
    ),
    _Least(
        "kernel/pid_max", 32768, "Ray allows 16,384 processes and threads per node, and one host has several nodes."
    ),
    _Least("fs/file-max", 262144, "Each Ray process and the object store open thousands of files and connections."),
)

_NO_OVERCOMMIT = "2"


def limits(place: Place) -> Iterator[Finding]:
    """Yield each kernel setting that is too low."""
    sys = place.proc / "sys"
    for limit in _LEAST:
        found = _read(sys / limit.path)
        if found and int(found) < limit.least:
            yield Finding(
                f"{limit.name} is {found}, less than {limit.least}.", limit.why, _set(limit.name, str(limit.least))
            )
    if _read(sys / "vm/overcommit_memory") == _NO_OVERCOMMIT:
        yield Finding(
            "vm.overcommit_memory is 2, so that the kernel refuses memory that nobody uses yet.",
            "Python processes with torch or CUDA reserve more than they use, and fail with 'Cannot allocate memory'.",
            _set("vm.overcommit_memory", "0"),
        )


def _set(name: str, value: str) -> str:
    return f"echo '{name}={value}' | sudo tee /etc/sysctl.d/90-{name.replace('.', '-')}.conf && sudo sysctl --system"


def _read(path: Path) -> str:
    """Return a setting's value; empty where this kernel has no such setting."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
