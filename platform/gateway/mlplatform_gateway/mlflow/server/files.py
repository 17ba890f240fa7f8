"""Plugin of `mlflow.artifact_repository` for the stack's MLflow server: objects in S3, behind the server only.

With S3's own repository, MLflow 3.17 gives clients the address at which it reaches the object store itself for large
files, whatever is configured, and a laptop cannot reach that. Its server offers this for repositories with the mix-ins
for multipart and presigned transfers; this one has none, so files pass through the server.
"""

from __future__ import annotations

from typing import Any

from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.s3_artifact_repo import S3ArtifactRepository

SCHEME = "served-s3"


class ServedFiles(ArtifactRepository):
    """Files below `served-s3://<bucket>/<prefix>`."""

    def __init__(self, artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        super().__init__(artifact_uri, tracking_uri, registry_uri)
        self._files: Any = S3ArtifactRepository(f"s3{artifact_uri.removeprefix(SCHEME)}")

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> None:
        """Upload a file."""
        self._files.log_artifact(local_file, artifact_path)

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Upload a folder."""
        self._files.log_artifacts(local_dir, artifact_path)

    def list_artifacts(self, path: str | None = None) -> Any:
        """List a folder."""
        return self._files.list_artifacts(path)

    def delete_artifacts(self, artifact_path: str | None = None) -> None:
        """Delete a file or folder."""
        self._files.delete_artifacts(artifact_path)

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        self._files._download_file(remote_file_path, local_path)
