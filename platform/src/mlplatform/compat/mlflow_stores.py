"""Rules on what MLflow's stores accept, as seen in mlflow 3.17.2, whichever of its interfaces a request came by.

MLflow has REST, AJAX, GraphQL and native routes with parsers of their own; all of them end in the methods of its two
stores and of its artifact repository. The rules are put around those methods, so that no spelling of a request gets
past them. Names are read before they are replaced: one that a later version renames aborts the server's start.
"""

from __future__ import annotations

import functools
import hmac
import inspect
import posixpath
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlplatform.compat.mlflow_audit import record_changes, registry_store, wrap
from mlplatform.compat.mlflow_owners import check_file
from mlplatform.contract import CHECKSUMS, TAG_DIGEST, TAG_SIGNATURE

SCHEME = "mlflow-artifacts:/"

_OWN_TAGS = {TAG_DIGEST, TAG_SIGNATURE}

_PROMPT = "dummy-source"
"""Source of every prompt, which has no files (`mlflow.prompt`)."""

_TRACE_LOCATION = "mlflow.artifactLocation"

_TRACE_ARCHIVE = "mlflow.trace.archiveLocation"
"""Place of a trace that MLflow has archived, which this server never does: the server reads and deletes files there."""

_LONGEST_SUMS = 32 << 20

_WRITES = (
    "log_artifact",
    "log_artifacts",
    "log_artifact_from_stream",
    "log_artifact_from_async_stream",
    "create_multipart_upload",
    "complete_multipart_upload",
    "create_presigned_upload_url",
    "delete_artifacts",
)


@dataclass(frozen=True)
class Signing:
    """Key of the server, and the way to the digest of a model's files."""

    key: bytes
    digest: Callable[[str], str]
    """Return the one digest over all files from the text of their checksums."""


def guard(signing: Signing) -> None:
    """Put every rule in force, in this process.

    Args:
        signing: how the server signs the digests of registered versions.
    """
    _guard_locations()
    _guard_versions(signing)
    _guard_files()
    record_changes()


def digest_of(name: str, version: str, signing: Signing) -> dict[str, Any]:
    """Return the digest of a version and whether this server has signed it, for these files."""
    registry = registry_store()
    tags = registry.get_model_version(name, version).tags
    location = registry.get_model_version_download_uri(name, version)
    digest, signed = tags.get(TAG_DIGEST, ""), tags.get(TAG_SIGNATURE, "")
    expected = signature(location, digest, signing.key)
    return {"digest": digest, "signed": bool(digest) and hmac.compare_digest(signed.encode(), expected.encode())}


def sign(name: str, version: str, signing: Signing) -> dict[str, Any]:
    """Sign a version that was registered before the server signed, or whose key was replaced."""
    registry = registry_store()
    digest = _recorded_digest(registry.get_model_version_download_uri(name, version), signing)
    claimed = registry.get_model_version(name, version).tags.get(TAG_DIGEST)
    if digest is None or claimed not in (None, digest):
        raise _refusal(
            f"Version {version} of model {name!r} cannot be signed: it has no {CHECKSUMS}, or another one than at "
            "its registration; log the model again and register it."
        )
    _set_signed(registry, name, version, digest, signing)
    return digest_of(name, version, signing)


def unregistered(location: str) -> str | None:
    """Return the path in the artifact store; None if it is elsewhere, or a registered version has files there."""
    path = _path_of(location)
    return None if not path or _registered_at(_and_above(path), path) else path


def sizes_of_files(path: str) -> list[int]:
    """Return the size of each file below a path, in bytes."""
    entries = list(_repository().list_artifacts(path))
    files = [entry.file_size or 0 for entry in entries if not entry.is_dir]
    return [*files, *(size for entry in entries if entry.is_dir for size in sizes_of_files(entry.path))]


def remove_files(path: str) -> None:
    """Remove every file below a path; refused if a registered version has files there."""
    _repository().delete_artifacts(path)


def _repository() -> Any:
    from mlflow.server import handlers

    return handlers._get_artifact_repo_mlflow_artifacts()  # type: ignore[no-untyped-call]


def _refusal(message: str) -> Exception:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    return MlflowException(message, PERMISSION_DENIED)


def _guard_locations() -> None:
    """Refuse files at places other than the server's own, of experiments and of traces.

    A trace's place is a tag, which MLflow 3.17.2 writes by five routes, spans in OpenTelemetry's format among them. All
    end in rows of `SqlTraceTag`.
    """
    from mlflow.store.tracking.dbmodels.models import SqlTraceTag
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import event

    wrap(SqlAlchemyStore, "create_experiment", _create_experiment)
    event.listen(SqlTraceTag, "before_insert", _check_trace_tag)
    event.listen(SqlTraceTag, "before_update", _check_trace_tag)


def _create_experiment(original: Callable[..., Any]) -> Callable[..., Any]:
    def create(self: Any, name: str, artifact_location: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if artifact_location and _path_of(artifact_location) is None:
            raise _elsewhere(artifact_location)
        return original(self, name, artifact_location, *args, **kwargs)

    return create


def _check_trace_tag(mapper: Any, connection: Any, tag: Any) -> None:
    """Refuse a place of a trace's files that is not the one which the server has assigned."""
    from sqlalchemy import inspect as state_of

    if tag.key not in (_TRACE_LOCATION, _TRACE_ARCHIVE):
        return
    state = state_of(tag)
    moved = state.persistent and state.attrs.value.history.has_changes()
    if tag.key == _TRACE_ARCHIVE or moved or _path_of(tag.value or "") is None:
        raise _elsewhere(tag.value)


def _elsewhere(location: str) -> Exception:
    return _refusal(
        f"The artifact location {location!r} is not this server's; leave it out, and the server assigns one "
        f"({SCHEME}...)."
    )


def _path_of(location: str) -> str | None:
    """Return the path in the artifact store; None if the location is elsewhere or not in its plain form."""
    path = location.removeprefix(SCHEME).removesuffix("/")
    plain = location.startswith(SCHEME) and path == posixpath.normpath(path)
    return path if plain and not path.startswith(("/", "..")) and not set("%?#\\") & set(path) else None


def _guard_versions(signing: Signing) -> None:
    """Sign the digest of each new version, and keep clients from setting or deleting digest and signature."""
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

    _set_tag.append(SqlAlchemyStore.set_model_version_tag)
    wrap(SqlAlchemyStore, "create_model_version", functools.partial(_create_version, signing))
    wrap(SqlAlchemyStore, "set_model_version_tag", _change_tag)
    wrap(SqlAlchemyStore, "delete_model_version_tag", _change_tag)


def _create_version(signing: Signing, original: Callable[..., Any]) -> Callable[..., Any]:
    def create(
        self: Any, name: str, source: str, run_id: Any = None, tags: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        _check_source(source)
        claimed = {tag.key: tag.value for tag in tags or [] if tag.key in _OWN_TAGS}
        if TAG_SIGNATURE in claimed:
            raise _own_tag(TAG_SIGNATURE)
        others = [tag for tag in tags or [] if tag.key not in _OWN_TAGS]
        made = original(self, name, source, run_id, others, *args, **kwargs)
        try:
            location = self.get_model_version_download_uri(name, made.version)
            if path := _path_of(location):
                check_file(path)
            digest = _recorded_digest(location, signing)
            if claimed and claimed[TAG_DIGEST] != digest:
                raise _refusal(f"The digest {claimed[TAG_DIGEST]!r} is not that of the {CHECKSUMS} of {source}.")
            if digest is None:
                return made
            _set_signed(self, name, made.version, digest, signing)
            return self.get_model_version(name, made.version)
        except Exception as error:
            # Otherwise it would stay, unsigned and without a row in the audit.
            self.delete_model_version(name, made.version)
            raise _unregistered(name, source, error) from error

    return create


def _unregistered(name: str, source: str, error: Exception) -> Exception:
    """Return the error of a client whose version could not be registered."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return error
    return MlflowException(
        f"No version of {name!r} was registered: the {CHECKSUMS} of {source} cannot be read ({error})."
    )


def _change_tag(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method whose last argument is a tag, or the name of one."""
    parameters = inspect.signature(original)

    def change(*args: Any, **kwargs: Any) -> Any:
        tag = list(parameters.bind(*args, **kwargs).arguments.values())[-1]
        if getattr(tag, "key", tag) in _OWN_TAGS:
            raise _own_tag(getattr(tag, "key", tag))
        return original(*args, **kwargs)

    return change


_set_tag: list[Callable[..., Any]] = []
"""MLflow's own `set_model_version_tag`, by which only the server sets digest and signature."""


def _own_tag(key: str) -> Exception:
    return _refusal(f"The tag {key} is set by the server when a version is registered; nobody else may change it.")


def _check_source(source: str) -> None:
    path = _path_of(source)
    # Three levels are all files of one run; a version there would keep the run, and those above others, from logging.
    if source != _PROMPT and not source.startswith("models:/") and (path is None or path.count("/") < 3):
        raise _refusal(
            f"The model's source {source!r} is not on this server; log the model to a run, and register that."
        )


def _set_signed(registry: Any, name: str, version: str, digest: str, signing: Signing) -> None:
    from mlflow.entities.model_registry import ModelVersionTag

    location = registry.get_model_version_download_uri(name, version)
    for tag, value in ((TAG_DIGEST, digest), (TAG_SIGNATURE, signature(location, digest, signing.key))):
        _set_tag[0](registry, name, version, ModelVersionTag(tag, value))  # type: ignore[no-untyped-call]


def signature(location: str, digest: str, key: bytes) -> str:
    """Return the signature of a model's digest together with the place of its files."""
    return hmac.new(key, f"{location}\n{digest}".encode(), "sha256").hexdigest()


def _recorded_digest(location: str, signing: Signing) -> str | None:
    """Return the digest of a model's SHA256SUMS; None if there is none."""
    path = _path_of(location)
    if path is None:
        return None
    repository, file = _repository(), f"{path}/{CHECKSUMS}"
    sizes = {entry.path: entry.file_size or 0 for entry in repository.list_artifacts(path)}
    if sizes.get(file, _LONGEST_SUMS) >= _LONGEST_SUMS:
        return None
    with tempfile.TemporaryDirectory() as folder:
        local = repository.download_artifacts(file, folder)
        return signing.digest(Path(local).read_text())


def _guard_files() -> None:
    """Refuse changes to files of registered versions, by any route: all of them use this one repository."""
    from mlflow.server import handlers

    original: Callable[..., Any] = handlers._get_artifact_repo_mlflow_artifacts

    def guarded() -> Any:
        repository = original()
        if not getattr(repository, "mlplatform_guarded", False):
            for name in _WRITES:
                if hasattr(repository, name):
                    setattr(repository, name, _checked(name, getattr(repository, name)))
            repository.mlplatform_guarded = True
        return repository

    handlers._get_artifact_repo_mlflow_artifacts = guarded


def _checked(name: str, write: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap one method of the repository so that it checks the path that its arguments stand for."""
    parameters = inspect.signature(write)

    def checked(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs).arguments
        file = posixpath.basename(str(given.get("local_file") or given.get("artifact_file_name") or ""))
        _check_write(posixpath.join(given.get("artifact_path") or "", file), deletes=name == "delete_artifacts")
        return write(*args, **kwargs)

    return checked


def _check_write(path: str, deletes: bool) -> None:
    path = posixpath.normpath(path).strip("/")
    check_file(path)
    found = _registered_at(_and_above(path), path if deletes else None)
    if found is None:
        return
    folder, _, file = path.rpartition("/")
    if not deletes and file == CHECKSUMS and path not in _names(folder):
        return  # the first checksums of a version that was registered without any
    raise _refusal(
        f"The file {path!r} belongs to version {found[1]} of the registered model {found[0]!r}, whose files cannot be "
        "changed; log a new model and register that."
    )


def _and_above(path: str) -> list[str]:
    """Return a path and those of the folders above it."""
    parts = path.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _names(folder: str) -> set[str]:
    return {entry.path for entry in _repository().list_artifacts(folder)}


def _registered_at(folders: list[str], below: str | None) -> tuple[str, str] | None:
    """Return name and version of a registered model with its files at one of these folders, or below another."""
    from mlflow.entities.model_registry.model_version_stages import STAGE_DELETED_INTERNAL
    from mlflow.store.model_registry.dbmodels.models import SqlModelVersion as Version
    from sqlalchemy import or_

    places = [f"{SCHEME}{folder}{end}" for folder in folders for end in ("", "/")]
    columns: tuple[Any, ...] = (Version.storage_location, Version.source)
    tests = [column.in_(places) for column in columns]
    if below is not None:
        prefix = SCHEME if below == "." else f"{SCHEME}{below}/"
        tests += [column.startswith(prefix, autoescape=True) for column in columns]
    with registry_store().ManagedSessionMaker(read_only=True) as session:
        query = session.query(Version.name, Version.version)
        row = query.filter(Version.current_stage != STAGE_DELETED_INTERNAL, or_(*tests)).first()
        return (row[0], str(row[1])) if row else None
