"""Files in which a one-shot service finds secrets: in a rotation, the new ones and the former ones too."""

from __future__ import annotations

from pathlib import Path

SECRETS = Path("/run/secrets")

ROTATION = Path("/rotation")
"""Mount point of the folder of a rotation (`stack/rotation_files.py`); missing at every other time."""


def secret(name: str) -> Path:
    """Return the file that holds a secret: in a rotation the new one, if that changes it."""
    new = ROTATION / "new" / name
    return new if new.exists() else SECRETS / name


def values(name: str) -> list[str]:
    """Return a secret and, in a rotation that changes it, the former one, which its owner may still require."""
    former = ROTATION / "former" / name
    return [path.read_text() for path in (secret(name), former) if path == secret(name) or path.exists()]
