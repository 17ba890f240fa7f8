"""Variables that a person's shell exports for other programs, and that would change the stack.

Compose and the settings prefer variables to `.env`. The stack's own commands leave out those that are named like a
setting, as many programs have a DOMAIN or a WORKER_CPUS, and Compose's own, which may name another project. Those that
choose an engine, such as DOCKER_HOST, have their effect. The Makefile does the same for the commands that it starts.
"""

from __future__ import annotations

import re
from pathlib import Path

from dotenv import dotenv_values

from mlplatform.settings.environment import leave_out, set_environment
from mlplatform_stack import proxies
from mlplatform_stack.settings import StackSettings

_OTHERS = r"COMPOSE_\w+|DOCKER_BUILDKIT|DOCKER_DEFAULT_PLATFORM"
"""Compose's variables; the others choose the builder and the platform of images, for which the stack has no choice."""


def use_own_settings(root: Path) -> None:
    """Leave out of this process, and of what it starts, what would take precedence over a checkout's `.env`."""
    read = (name for file in (root / "compose").rglob("*.yaml") for name in re.findall(r"\$\{(\w+)", file.read_text()))
    # `make BUNDLE=` empties the digests; a proxy may be set in the shell.
    names = (name for name in {*read, *StackSettings.variables()} if not name.lower().endswith(("_digest", "_proxy")))
    leave_out(re.compile("|".join([_OTHERS, *names])))
    set_environment(proxies.for_containers(dotenv_values(root / ".env")))
