"""The stack before an upgrade: its images, settings and databases, saved in a folder and restored from it.

The databases are read and written in Postgres' own container, with its programs: versions up to 0.3 lack the account
with which backups read them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform.settings.stack import StackSettings
from mlplatform.stack.compose_command import compose

_KEPT = "mlplatform-former"
"""Name under which Docker keeps the images, so that `docker image prune` does not remove them."""

_GENERATED = ("compose/*.generated.yaml", "docker/alertmanager/*.generated.yaml")
"""Files that `make env` writes for each version."""

_COUNTED = (("gateway", "jobs"), ("mlflow", "runs"), ("mlflow", "model_versions"))
"""Database and table of what an upgrade must not lose."""

_SUPERUSER = "--username=postgres"


def docker(what: str, *command: str, **options: Any) -> str:
    """Run a command and return what it prints.

    Raises:
        HostError: it failed; the message names what it was for, and has the last line that it printed.
    """
    chosen = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **options}
    result = subprocess.run(["docker", *command], stderr=subprocess.PIPE, text=True, check=False, **chosen)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise HostError(f"{what} failed: {reason}")
    return (result.stdout or "").strip()


def composed(root: Path, what: str, *arguments: str) -> None:
    """Run a command of Compose on the checkout's files.

    Raises:
        HostError: it failed.
    """
    docker(what, *compose(root, *arguments)[1:])


def containers(root: Path) -> list[dict[str, Any]]:
    """Return Docker's description of each container of the stack."""
    project = f"label=com.docker.compose.project={_prefix(root)}mlplatform"
    ids = docker("docker ps", "ps", "--all", "--quiet", "--filter", project).split()
    found: list[dict[str, Any]] = json.loads(docker("docker inspect", "inspect", *ids)) if ids else []
    return found


def service(container: dict[str, Any]) -> str:
    """Return the name of a container's service."""
    return str(container["Config"]["Labels"]["com.docker.compose.service"])


class Former:
    """The state of a stack in a folder."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._saved = folder / "saved"
        self._images = folder / "images.json"
        self._settings = folder / "settings"
        self._dumps = folder / "databases"
        self._counts = folder / "counts.json"

    # --- Settings and images ---

    @property
    def is_saved(self) -> bool:
        """True if settings and images are saved completely."""
        return self._saved.exists()

    def save(self, version: str) -> None:
        """Save the settings, for a version, and keep the images that the containers use."""
        shutil.rmtree(self._settings, ignore_errors=True)
        for path in self._files():
            target = self._settings / path.relative_to(self._root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        # `make env` of the new version may have changed it already.
        env = self._settings / ".env"
        env.write_text(re.sub("^MLPLATFORM_VERSION=.*$", f"MLPLATFORM_VERSION={version}", env.read_text(), flags=re.M))
        used = self._used(version)
        kept = {name: f"{_KEPT}:{_prefix(self._root)}{number}" for number, name in enumerate(sorted(used))}
        _write(self._images, kept)
        for name, other in kept.items():
            docker(f"keeping the image {name}", "tag", used[name], other)
        self._saved.touch()

    def restore(self) -> None:
        """Restore settings and names of images."""
        for path in self._files():
            if not (self._settings / path.relative_to(self._root)).exists():
                path.unlink()
        for path in self._settings.rglob("*"):
            if path.is_file():
                with atomic.new_file(self._root / path.relative_to(self._settings)) as draft:
                    shutil.copy2(path, draft)
        for name, kept in json.loads(self._images.read_text()).items():
            if "@" not in name:  # a name with a digest always means the same image, and none can be given it
                docker(f"restoring the image {name}", "tag", kept, name)

    def forget(self) -> None:
        """Remove the names that kept the images."""
        if self._images.exists():
            for kept in json.loads(self._images.read_text()).values():
                subprocess.run(["docker", "image", "rm", kept], capture_output=True, check=False)

    def _files(self) -> list[Path]:
        return [self._root / ".env", *(path for pattern in _GENERATED for path in self._root.glob(pattern))]

    def _used(self, version: str) -> dict[str, str]:
        """Return names and ids of the images of the stack's containers, and of those that only some verbs start."""
        ours = f"reference=mlplatform-*:{version}"
        listing = ("image", "ls", "--filter", ours, "--format", "{{.Repository}}:{{.Tag}} {{.ID}}")
        lines = docker("docker image ls", *listing).splitlines()
        built = dict(line.split() for line in lines)
        return {**built, **{entry["Config"]["Image"]: entry["Image"] for entry in containers(self._root)}}

    # --- Databases ---

    def dump(self) -> None:
        """Save each database, and the number of jobs, runs and models."""
        shutil.rmtree(self._dumps, ignore_errors=True)
        self._dumps.mkdir(parents=True)
        names = "SELECT datname FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres'"
        for name in self._query("postgres", names).splitlines():
            with (self._dumps / name).open("wb") as file:
                self._in_postgres("pg_dump", "--format=custom", name, stdout=file)
        _write(self._counts, self._count())

    def restore_databases(self) -> None:
        """Replace each database by what was saved; Postgres runs, and nothing is connected to it."""
        for path in sorted(self._dumps.iterdir()):
            with path.open("rb") as file:
                replace = ("--clean", "--create", "--if-exists", "--exit-on-error", "--dbname=postgres")
                self._in_postgres("pg_restore", *replace, stdin=file)

    def check(self) -> None:
        """Compare the numbers of jobs, runs and models with those that were saved.

        Raises:
            HostError: some are missing.
        """
        found = self._count()
        for table, before in json.loads(self._counts.read_text()).items():
            if found[table] < before:
                raise HostError(f"{table} has {found[table]} rows after the upgrade, {before} before.")

    def _count(self) -> dict[str, int]:
        counts = {}
        for database, table in _COUNTED:
            found = f"SELECT count(*) FROM pg_database WHERE datname = '{database}'"  # noqa: S608 a constant
            exists = self._query("postgres", found) == "1" and self._query(database, f"SELECT to_regclass('{table}')")
            query = f"SELECT count(*) FROM {table}"  # noqa: S608 a constant
            counts[f"{database}.{table}"] = int(self._query(database, query)) if exists else 0
        return counts

    def _query(self, database: str, sql: str) -> str:
        options = ("--no-psqlrc", "--tuples-only", "--no-align", f"--dbname={database}", f"--command={sql}")
        return self._in_postgres("psql", *options)

    def _in_postgres(self, program: str, *arguments: str, **options: Any) -> str:
        container = f"{_prefix(self._root)}postgres"
        return docker(program, "exec", "-i", container, program, _SUPERUSER, *arguments, **options)


def _prefix(root: Path) -> str:
    return StackSettings.load(root / ".env").prefix


def _write(path: Path, content: dict[str, Any]) -> None:
    with atomic.new_file(path) as draft:
        draft.write_text(json.dumps(content))
