"""The example of Alertmanager's configuration with all that is a comment in it."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "docker/alertmanager/alertmanager.example.yml"


def uncommented(text: str) -> str:
    """Remove the "#" before lines of configuration, as its first comment asks for; texts follow "# "."""
    return re.sub(r"^( *)#(?! \S)", r"\1", text, flags=re.M)
