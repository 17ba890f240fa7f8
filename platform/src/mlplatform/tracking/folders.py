"""Uploads of folders to MLflow."""

from __future__ import annotations

import posixpath
import sys
from pathlib import Path
from typing import Any

from mlplatform.compat.mlflow_artifacts import exact_path
from mlplatform.files.walk import files_below, left_out


def log_artifacts(self: Any, local_dir: str, artifact_path: str | None = None) -> None:
    """Upload every file below a folder, also in linked folders; nothing, if one has a name that cannot be stored."""
    folder, skipped = Path(local_dir).absolute(), dict[Path, str]()
    files = sorted(files_below(folder, skipped=skipped))
    paths = [posixpath.join(artifact_path or "", file.relative_to(folder).as_posix()) for file in files]
    for path in paths:
        exact_path(path)
    for file, path in zip(files, paths, strict=True):
        self.log_artifact(str(file), posixpath.dirname(path) or None)
    if skipped:
        print(left_out(folder, skipped, "logged"), file=sys.stderr, flush=True)
