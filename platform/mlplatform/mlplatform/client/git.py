"""Commit and diff of a job's folder, read where the job is submitted."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mlplatform.contract import MAX_COMMAND, MAX_PACKED, pack
from mlplatform.settings.environment import environment

_NO_COMMIT = ("not a git repository", "Needed a single revision")
"""Answers of git outside of repositories and before the first commit."""

_MAX_NEW_FILE = 256 * 1024
"""Size limit of an untracked file in the diff, in bytes; a larger one is data rather than code."""


def commit(folder: Path) -> str | None:
    """Return the commit of the folder's repository; None without git or outside of a repository."""
    answer = git(folder, "rev-parse", "--verify", "HEAD")
    return answer.strip() if answer else None


def refusal(folder: Path) -> str | None:
    """Return a sentence on why git does not report a folder's commit; None if it does, or outside of a repository."""
    if shutil.which("git") is None:
        there = any((parent / ".git").exists() for parent in (folder.absolute(), *folder.absolute().parents))
        return "git is not installed; install it, or the run has no commit." if there else None
    done = _run(folder, "rev-parse", "--verify", "HEAD")
    if done.returncode == 0 or any(sign in done.stderr for sign in _NO_COMMIT):
        return None
    return f"git refuses ({' '.join(done.stderr.split())})."


def diff(folder: Path) -> str | None:
    """Return the folder's changes since its commit, new files included, for `git apply` at the repository's root.

    Returns:
        The diff; None for a clean tree or without a commit.
    """
    repository = git(folder, "rev-parse", "--absolute-git-dir")
    if repository is None or commit(folder) is None:
        return None
    listed = git(folder, "ls-files", "-z", "--others", "--exclude-standard") or ""
    files = (folder / name for name in listed.split("\0") if name)
    new = [str(file.relative_to(folder)) for file in files if file.is_file() and file.stat().st_size <= _MAX_NEW_FILE]
    # New files appear in a diff only if an index lists them. A copy of the index, so that the user's own is unchanged.
    with tempfile.TemporaryDirectory(prefix="mlplatform-") as scratch:
        copy = Path(scratch) / "index"
        if (own := Path(repository.strip()) / "index").is_file():
            shutil.copy2(own, copy)
        if new:
            announce = ("add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul")
            git(folder, *announce, given="\0".join(new), index=copy)
        return git(folder, "diff", "--no-color", "--no-ext-diff", "HEAD", "--", ".", index=copy) or None


def describe(folder: Path, command: str) -> dict[str, str]:
    """Return a job's metadata about its source: `entrypoint`, `git_commit`, and `git_diff`, packed.

    A diff that is too large for metadata is left out; a message on stderr and in its place reports it. Another one on
    stderr reports why git refuses to name the commit.
    """
    known: dict[str, str | None] = {"entrypoint": command[:MAX_COMMAND], "git_commit": commit(folder)}
    if known["git_commit"] is None and (why := refusal(folder)):
        print(f"The job's commit is not recorded: {why}", file=sys.stderr, flush=True)
    if text := diff(folder):
        packed = pack(text)
        if len(packed) > MAX_PACKED:
            message = (
                f"The uncommitted changes in {folder} are {len(text) >> 10} KiB, too many for the job's metadata, "
                "so the run does not keep them; commit them."
            )
            print(message, file=sys.stderr, flush=True)
            packed = pack(f"# {message}\n")
        known["git_diff"] = packed
    return {key: value for key, value in known.items() if value}


def git(folder: Path, *arguments: str, given: str | None = None, index: Path | None = None) -> str | None:
    """Return the output of a git command in a folder; None if it fails or git is not installed."""
    if shutil.which("git") is None:
        return None
    done = _run(folder, *arguments, given=given, index=index)
    return done.stdout if done.returncode == 0 else None


def _run(
    folder: Path, *arguments: str, given: str | None = None, index: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        input=given,
        env={**environment(), "LC_ALL": "C", **({"GIT_INDEX_FILE": str(index)} if index else {})},
        capture_output=True,
        encoding="utf-8",
        # A diff contains files as they are, in any encoding.
        errors="surrogateescape",
        check=False,
    )
