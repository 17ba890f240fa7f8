"""Refusal of `ray.init` where no node of the cluster is, with the way that works; seen in Ray 2.60.0.

A notebook, a laptop and a host reach the cluster by its Jobs API. There, `ray.init` ends with advice that does not help
(if RAY_ADDRESS is the gateway's), waits for a node for 50 s (for the head's address), or starts a Ray of its own with
no word. Ray's own hook, RAY_RUNTIME_ENV_HOOK, comes after the first of these and is not given the address.
`mlplatform.pth` imports this in such processes.
"""

from __future__ import annotations

import os
from typing import Any

from mlplatform.compat.patches import AfterImport, around

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def refusal(address: str | None) -> str | None:
    """Return the sentence for a `ray.init` of this address; None if Ray can do what it asks for.

    In a notebook of the stack, which RAY_JOB_SUBMIT_HOOK tells, a Ray of its own must be asked for; elsewhere, only the
    gateway's address is refused.
    """
    asked = os.environ.get("RAY_ADDRESS") if address in (None, "auto") else address
    of_gateway = str(asked).startswith(("http://", "https://"))
    host = str(asked).rpartition("://")[2].rpartition(":")[0]
    if not of_gateway and ("RAY_JOB_SUBMIT_HOOK" not in os.environ or asked == "local" or host in _LOOPBACK):
        return None
    return (
        f"ray.init() cannot connect to {asked or 'the cluster'} from here, because this is not one of its nodes: run "
        'the script as a job with `ray job submit --working-dir . -- python train.py`, or call ray.init("local") for a '
        "small Ray of this machine alone."
    )


def _replace(ray: Any) -> None:
    @around(ray, "init")
    def connect(init: Any, address: str | None = None, **options: Any) -> Any:
        if not ray.is_initialized() and (sentence := refusal(address)):
            raise ConnectionError(sentence)
        return init(address, **options)


AfterImport({"ray": _replace})
