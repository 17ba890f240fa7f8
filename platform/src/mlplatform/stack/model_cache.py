"""Copy of models downloaded on another machine, in the folder from which jobs read them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from mlplatform.errors import HostError
from mlplatform.stack.compose_command import compose

_PARTS = ("huggingface/hub", "torch")
_UNPACK = ["sh", "-c", "mkdir -p /shared/cache && tar --extract --directory=/shared/cache"]


def copy_models(root: Path, source: Path) -> list[str]:
    """Copy the hubs' caches below `source` to `/shared/cache` of the running stack.

    Returns:
        The caches that were copied, as paths below `source`.

    Raises:
        HostError: `source` holds no such cache, or it cannot be copied to the stack's worker.
    """
    parts = [part for part in _PARTS if (source / part).is_dir()]
    if not parts:
        raise HostError(
            f"The folder '{source}' holds neither huggingface/hub nor torch; name the cache of a machine that has "
            "downloaded models, such as ~/.cache."
        )
    pack = subprocess.Popen(["tar", "--create", *parts], cwd=source, stdout=subprocess.PIPE)
    unpack = subprocess.run(compose(root, "exec", "-T", "ray-worker-0", *_UNPACK), stdin=pack.stdout, check=False)
    if pack.stdout:
        pack.stdout.close()
    if pack.wait() or unpack.returncode:
        raise HostError(f"The models of {source} were not copied; check that the stack runs (`make status`).")
    return parts
