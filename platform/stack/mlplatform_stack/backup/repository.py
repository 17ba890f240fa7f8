"""Backups in a repository of restic: encrypted, without duplicates, in a folder or on another server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from mlplatform.contract import BACKUP_SERVERS
from mlplatform.errors import StorageError
from mlplatform.settings.environment import environment
from mlplatform_stack.bootstrap.secret_files import SECRETS

FOLDER = Path("/target")
"""Mount point of a folder of the host."""

_FILE, _TAG = "stack.tar", "mlplatform"

_NO_REPOSITORY, _WRONG_PASSWORD = 10, 12
"""Exit codes of restic, since 0.17."""

_ANSWER_SECONDS = 60.0
"""Time in which a repository must open; restic itself retries for 15 minutes."""


@dataclass(frozen=True)
class Repository:
    """A repository of restic.

    Attributes:
        shown: the folder or server as the operator wrote it.
    """

    shown: str

    @property
    def address(self) -> str:
        """The address as restic writes it: the mounted folder, `s3:https://server/bucket`, `rest:https://server/`."""
        return self.shown if self.shown.startswith(BACKUP_SERVERS) else str(FOLDER)

    def save(self, write: Callable[[IO[bytes]], None], *, begin: bool = True) -> None:
        """Add a backup that `write` writes to a stream; none is added if it fails.

        Args:
            write: writes the backup.
            begin: make the repository if it does not exist.

        Raises:
            StorageError: the repository cannot be used.
        """
        self._prepare(begin=begin)
        command = ["restic", "backup", "--quiet", "--stdin", f"--stdin-filename={_FILE}", f"--tag={_TAG}"]
        with subprocess.Popen(
            [*command, "--host=stack"], env=self._environment(), stdin=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            stdin, stderr = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stderr)
            try:
                write(stdin)
                stdin.close()
            except BrokenPipeError:
                pass
            except BaseException:
                # Killed before its input ends: it would keep an incomplete backup.
                process.kill()
                raise
            errors = stderr.read().decode(errors="replace")
        if process.returncode:
            raise self._problem(process.returncode, errors)

    def forget(self, daily: int, weekly: int, monthly: int) -> None:
        """Remove backups beyond the numbers to keep, and their data; all zero keeps every backup."""
        numbers = {"daily": daily, "weekly": weekly, "monthly": monthly}
        rules = [f"--keep-{name}={number}" for name, number in numbers.items() if number]
        if rules:
            self._run("forget", "--quiet", "--prune", f"--tag={_TAG}", "--group-by=tags", *rules)

    def check(self) -> None:
        """Check the repository's structure; reading a backup verifies its data."""
        self._open()
        self._run("check", "--quiet", "--no-lock")

    def id_of(self, snapshot: str) -> str:
        """Return the id of a backup, which stays the same when later ones are added.

        Args:
            snapshot: the beginning of its id, or `latest`.

        Raises:
            StorageError: there is no such backup.
        """
        found = json.loads(self._run("snapshots", "--json", "--no-lock", f"--tag={_TAG}", snapshot) or "[]")
        if not found:
            raise StorageError(f"{self.shown} has no backup {snapshot}; name another one with SNAPSHOT=.")
        return str(found[0]["id"])

    @contextmanager
    def opened(self, snapshot: str) -> Iterator[IO[bytes]]:
        """Open the archive of a backup.

        Args:
            snapshot: its id, or `latest`.

        Raises:
            StorageError: the backup is missing or damaged.
        """
        command = ["restic", "dump", "--quiet", "--no-lock", f"--tag={_TAG}", snapshot, f"/{_FILE}"]
        with subprocess.Popen(
            command, env=self._environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            stdout, stderr = cast("IO[bytes]", process.stdout), cast("IO[bytes]", process.stderr)
            try:
                if not stdout.peek(1):  # type: ignore[attr-defined]
                    raise self._problem(process.wait() or 1, stderr.read().decode(errors="replace"))
                yield stdout
                while stdout.read(1 << 20):
                    pass
                errors = stderr.read().decode(errors="replace")
                process.wait()
            finally:
                process.kill()
        if process.returncode:
            raise self._problem(process.returncode, errors)

    def _prepare(self, *, begin: bool) -> None:
        if begin:
            # First, because on a server without the bucket, which this creates, other commands retry for 15 minutes.
            made = self._try("init", "--quiet", seconds=_ANSWER_SECONDS)
            if made.returncode and "already" not in made.stderr:
                raise self._problem(made.returncode, made.stderr)
        self._open()
        # Locks of backups that were killed; those of running ones stay.
        self._run("unlock", "--quiet")

    def _open(self) -> None:
        """Check that the repository answers and accepts the password."""
        self._run("cat", "config", "--no-lock", seconds=_ANSWER_SECONDS)

    def _run(self, *arguments: str, seconds: float | None = None) -> str:
        result = self._try(*arguments, seconds=seconds)
        if result.returncode:
            raise self._problem(result.returncode, result.stderr)
        return result.stdout

    def _try(self, *arguments: str, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
        command = ["restic", *arguments]
        try:
            return subprocess.run(
                command, env=self._environment(), capture_output=True, text=True, check=False, timeout=seconds
            )
        except subprocess.TimeoutExpired as error:
            raise StorageError(
                f"{self.shown} does not answer within {seconds:.0f} s: check the address, that the bucket exists, and "
                "the account in secrets/backup_s3."
            ) from error

    def _environment(self) -> Mapping[str, str]:
        return {
            **environment(),
            "RESTIC_REPOSITORY": self.address,
            "RESTIC_PASSWORD_FILE": str(SECRETS / "backup_password"),
            "RESTIC_CACHE_DIR": "/tmp/restic",  # noqa: S108 a volume of its own
            "RESTIC_PROGRESS_FPS": "0",
            # restic would otherwise use the account of the stack's own object store.
            "AWS_SHARED_CREDENTIALS_FILE": str(SECRETS / "backup_s3"),
        }

    def _problem(self, code: int, errors: str) -> StorageError:
        if code == _WRONG_PASSWORD:
            return StorageError(
                f"secrets/backup_password does not open the backups at {self.shown}: copy that file from where they "
                "were made, or name another place."
            )
        if code == _NO_REPOSITORY:
            return StorageError(
                f"No backups were found at {self.shown}; mount its disk, or name another place. `make backup "
                f"TO={self.shown}` begins there."
            )
        lines = errors.strip().splitlines() or ["no reason given"]
        return StorageError(f"restic failed at {self.shown} ({lines[-1]}); correct that and retry.")
