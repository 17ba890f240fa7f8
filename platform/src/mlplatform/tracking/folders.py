"""Uploads of folders to MLflow."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from mlplatform.compat.mlflow_artifacts import exact_path
from mlplatform.files.walk import to_keep


def log_artifacts(self: Any, local_dir: str, artifact_path: str | None = None) -> None:
    """Upload every file below a folder, also in linked folders, if all have names that can be stored."""
    folder = Path(local_dir).absolute()
    files = to_keep(folder, "logged")
    paths = [posixpath.join(artifact_path or "", file.relative_to(folder).as_posix()) for file in files]
    for path in paths:
        exact_path(path)
    for file, path in zip(files, paths, strict=True):
        self.log_artifact(str(file), posixpath.dirname(path) or None)
