"""The stack before an upgrade: its commit, settings, images and databases, saved in a folder and restored from it.

facts.json     both commits with their versions, and the half of the stack that runs; removed first
images.json    each image's name, and the tag that keeps it
settings/      `.env` and generated files
program/       the packages that perform the upgrade
dump/          the databases, once nothing writes to them, and numbers of rows; until they are restored
failure        why a step failed, from then on
"""

from __future__ import annotations

import json
import os
import re
import shutil
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import mlplatform
from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform_stack import images
from mlplatform_stack.docker import answer, containers, output
from mlplatform_stack.settings import StackSettings
from mlplatform_stack.unfinished import FACTS

_KEPT = "mlplatform-former"
"""Name under which Docker keeps the images, so that `docker image prune` does not remove them."""

_GENERATED = ("compose/*.generated.*", "docker/*/*.generated.*")
"""Files that `make env` writes for each version."""

_COUNTED = (("gateway", "jobs"), ("mlflow", "runs"))
"""Database and table of what an upgrade must not lose; rows of neither are deleted in the first hour of a start."""

_COUNTS = "counts.json"


class Former:
    """The state of a stack in a folder."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder
        self.program = folder / "program"
        self._settings, self._dump, self._failure = folder / "settings", folder / "dump", folder / "failure"

    def save(self, facts: dict[str, str]) -> None:
        """Save everything but the databases, and keep the images that the containers use."""
        for package in (Path(mlplatform.__path__[0]), Path(__file__).parent):
            shutil.copytree(package, self.program / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        # Its entry point is the command `stack`.
        metadata = Path(str(distribution("mlplatform-stack").locate_file("")))
        for found in metadata.glob("mlplatform_stack-*.dist-info"):
            shutil.copytree(found, self.program / found.name)
        for path in self._files():
            target = self._settings / path.relative_to(self._root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        # `make env` of the new version may have changed it already.
        env, line = self._settings / ".env", f"MLPLATFORM_VERSION={facts['from_version']}"
        env.write_text(re.sub("^MLPLATFORM_VERSION=.*$", line, env.read_text(), flags=re.M))
        used = self._used(facts["from_version"])
        kept = {name: f"{_KEPT}:{_prefix(self._root)}{number}" for number, name in enumerate(sorted(used))}
        for name, tag in kept.items():
            output("docker", "tag", used[name], tag)
        (self._folder / "images.json").write_text(json.dumps(kept))
        (self._folder / FACTS).write_text(json.dumps(facts))
        os.sync()

    @property
    def facts(self) -> dict[str, str]:
        """The facts that `save` was given."""
        found: dict[str, str] = json.loads((self._folder / FACTS).read_text())
        return found

    @property
    def failure(self) -> str:
        """The reason why a step failed; empty while none has."""
        return self._failure.read_text() if self._failure.exists() else ""

    @failure.setter
    def failure(self, reason: str) -> None:
        atomic.write(self._failure, reason)

    def restore_settings(self) -> None:
        """Restore settings and names of images."""
        for path in self._files():
            if not (self._settings / path.relative_to(self._root)).exists():
                path.unlink()
        for path in self._settings.rglob("*"):
            if path.is_file():
                with atomic.new_file(self._root / path.relative_to(self._settings)) as draft:
                    shutil.copy2(path, draft)
        for name, kept in self._kept().items():
            if "@" not in name:  # a name with a digest always means the same image, and none can be given it
                output("docker", "tag", kept, name)

    def forget(self) -> None:
        """Remove the folder, and the names that kept the images."""
        kept = self._kept()
        (self._folder / FACTS).unlink()
        for name in kept.values():
            answer("docker", "image", "rm", name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kept(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self._folder / "images.json").read_text())
        return found

    def _files(self) -> list[Path]:
        return [self._root / ".env", *(file for pattern in _GENERATED for file in self._root.glob(pattern))]

    def _used(self, version: str) -> dict[str, str]:
        """Return names and ids of the images of the stack's containers, and of those that only some verbs start."""
        running = {entry["Config"]["Image"]: entry["Image"] for entry in containers(_prefix(self._root))}
        return {**images.built(version), **running}

    # --- Databases ---

    @property
    def has_dump(self) -> bool:
        """True if the databases are saved, and so may have been changed."""
        return self._dump.exists()

    def dump(self) -> None:
        """Save each database, and the number of jobs and runs; nothing writes meanwhile."""
        with atomic.new_folder(self._dump) as draft:
            for name in self._databases():
                with (draft / f"{name}.dump").open("wb") as file:
                    self._in_postgres("pg_dump", "--format=custom", name, stdout=file)
            (draft / _COUNTS).write_text(json.dumps(self._count()))
            os.sync()

    def check(self) -> None:
        """Compare the numbers of jobs and runs with those that were saved.

        Raises:
            HostError: some are missing.
        """
        found = self._count()
        for table, before in json.loads((self._dump / _COUNTS).read_text()).items():
            if found.get(table, 0) < before:
                raise HostError(f"{table} has {found.get(table, 0)} rows after the upgrade, {before} before")

    def restore_databases(self) -> None:
        """Replace each database by what was saved, once; Postgres runs, and nothing is connected to it."""
        for path in sorted(self._dump.glob("*.dump")):
            with path.open("rb") as file:
                replace = ("--clean", "--create", "--if-exists", "--exit-on-error", "--dbname=postgres")
                self._in_postgres("pg_restore", *replace, stdin=file)
        # From here on, the former version writes to them.
        self._dump.rename(self._dump.with_name("restored"))

    def _databases(self) -> list[str]:
        return self._query(
            "postgres", "SELECT datname FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres'"
        )

    def _count(self) -> dict[str, int]:
        """Return the rows of each table that there is; half of a stack lacks some."""
        databases = self._databases()
        return {
            f"{database}.{table}": int(self._query(database, f"SELECT count(*) FROM {table}")[0])  # noqa: S608 a constant
            for database, table in _COUNTED
            if database in databases and any(self._query(database, f"SELECT to_regclass('{table}')"))
        }

    def _query(self, database: str, sql: str) -> list[str]:
        return self._in_postgres("psql", "--no-psqlrc", "-At", f"--dbname={database}", f"--command={sql}").splitlines()

    def _in_postgres(self, program: str, *arguments: str, **options: Any) -> str:
        container = f"{_prefix(self._root)}postgres"
        return output("docker", "exec", "-i", container, program, "--username=postgres", *arguments, **options)


def _prefix(root: Path) -> str:
    return StackSettings.load(root / ".env").stack_prefix
