"""Files in which a one-shot service finds secrets: in a rotation, the new ones beside the present ones."""

from __future__ import annotations

from pathlib import Path

SECRETS = Path("/run/secrets")

NEXT = Path("/run/next")
"""Mount point of the new secrets of a rotation (`rotation.py`); missing at every other time."""


def secret(name: str) -> Path:
    """Return the file that holds a secret: in a rotation the new one, if that changes it."""
    path = NEXT / name
    return path if path.exists() else SECRETS / name


def values(name: str) -> list[str]:
    """Return a secret and, in a rotation that changes it, the present one, which its owner may still require."""
    return [path.read_text() for path in dict.fromkeys((secret(name), SECRETS / name))]
