"""Limits of the kernel below which jobs or services fail with messages that do not name them."""

from __future__ import annotations

from collections.abc import Iterator

from mlplatform_stack.checks.finding import Finding, Place

_LEAST = {
    "fs.inotify.max_user_instances": (
        256,
        "Templates of the warm start and JupyterLab watch files with one instance per process, counted per user.",
    ),
    "fs.inotify.max_user_watches": (
        65536,
        "Templates of the warm start watch the folders of 6,500 files each, and start programs cold without that.",
    ),
    "kernel.pid_max": (32768, "Ray allows 16,384 processes and threads per node, and one host has several nodes."),
    "fs.file-max": (262144, "Each Ray process and the object store open thousands of files and connections."),
}
"""Least value of kernel settings, and the reason for it."""

_NO_OVERCOMMIT = "2"


def limits(place: Place) -> Iterator[Finding]:
    """Yield each kernel setting that is too low."""
    for name, (least, why) in _LEAST.items():
        found = _read(place, name)
        if found and int(found) < least:
            yield Finding(f"{name} is {found}, less than {least}.", why, _set(name, str(least)))
    if _read(place, "vm.overcommit_memory") == _NO_OVERCOMMIT:
        yield Finding(
            "vm.overcommit_memory is 2, so that the kernel refuses memory that nobody uses yet.",
            "Python processes with torch or CUDA reserve more than they use, and fail with 'Cannot allocate memory'.",
            _set("vm.overcommit_memory", "0"),
        )


def _set(name: str, value: str) -> str:
    return f"echo '{name}={value}' | sudo tee /etc/sysctl.d/90-{name.replace('.', '-')}.conf && sudo sysctl --system"


def _read(place: Place, name: str) -> str:
    """Return a setting's value; empty where this kernel has no such setting."""
    try:
        return (place.proc / "sys" / name.replace(".", "/")).read_text().strip()
    except OSError:
        return ""
