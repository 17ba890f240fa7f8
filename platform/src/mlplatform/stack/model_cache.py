"""Copies of models downloaded on another machine, in the caches of jobs and of the notebook.

The notebook has a cache of its own, because jobs can write to theirs: what it loads runs with the accounts of people.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.stack import compose
from mlplatform.stack.compose_command import compose as command

_PARTS = ("huggingface/hub", "torch")

_CACHES = {"ray-worker-0": "/shared/cache", "notebook": "/cache"}
"""Cache of the jobs, by a service that has it, and of the notebook."""


def copy_models(root: Path, source: Path) -> list[str]:
    """Copy the hubs' caches below `source` to those of the running stack's jobs and notebook.

    Returns:
        The caches that were copied, as paths below `source`.

    Raises:
        HostError: `source` holds no such cache, or it cannot be copied because the stack does not run.
    """
    parts = [part for part in _PARTS if (source / part).is_dir()]
    if not parts:
        raise HostError(
            f"The folder '{source}' holds neither huggingface/hub nor torch; name the cache of a machine that has "
            "downloaded models, such as ~/.cache."
        )
    started = compose.running(root)
    running = [service for service in _CACHES if service in started]
    for service in running:
        if not _copied(root, source, parts, service):
            raise HostError(f"The models of {source} were not copied to the cache of {service}; see the message above.")
    if not running:
        raise HostError(f"The models of {source} were not copied: the stack does not run; start it with `make up`.")
    return parts


def _copied(root: Path, source: Path, parts: list[str], service: str) -> bool:
    folder = _CACHES[service]
    unpack = ["sh", "-c", f"mkdir -p {folder} && tar --extract --directory={folder}"]
    pack = subprocess.Popen(["tar", "--create", *parts], cwd=source, stdout=subprocess.PIPE)
    unpacked = subprocess.run(command(root, "exec", "-T", service, *unpack), stdin=pack.stdout, check=False)
    if pack.stdout:
        pack.stdout.close()
    return not (pack.wait() or unpacked.returncode)
