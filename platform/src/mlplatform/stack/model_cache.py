"""Copies of models downloaded on another machine, in the caches of jobs and of notebooks.

Notebooks have caches of their own, because jobs can write to theirs: what they load runs with the accounts of people.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.stack.docker import compose, running
from mlplatform.stack.notebook_file import read_ports, service_name
from mlplatform.stack.services import NOTEBOOK

_PARTS = ("huggingface/hub", "torch")

_JOBS = ("ray-worker-0", "/shared/cache")
"""A service that has the cache of the jobs, and the folder."""

_OF_NOTEBOOKS = "/cache"


def copy_models(root: Path, source: Path) -> list[str]:
    """Copy the hubs' caches below `source` to those of the running stack's jobs and notebooks.

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
    caches = dict([_JOBS, (NOTEBOOK, _OF_NOTEBOOKS)])
    caches |= {service_name(person): _OF_NOTEBOOKS for person in read_ports(root)}
    found = running(root) & set(caches)
    for service in sorted(found):
        if not _copied(root, source, parts, service, caches[service]):
            raise HostError(f"The models of {source} were not copied to the cache of {service}; see the message above.")
    if not found:
        raise HostError(f"The models of {source} were not copied: the stack does not run; start it with `make up`.")
    return parts


def _copied(root: Path, source: Path, parts: list[str], service: str, folder: str) -> bool:
    unpack = ["sh", "-c", f"mkdir -p {folder} && tar --extract --directory={folder}"]
    pack = subprocess.Popen(["tar", "--create", *parts], cwd=source, stdout=subprocess.PIPE)
    receive = compose(root, "--profile", "*", "exec", "-T", service, *unpack)
    unpacked = subprocess.run(receive, stdin=pack.stdout, check=False)
    if pack.stdout:
        pack.stdout.close()
    return not (pack.wait() or unpacked.returncode)
