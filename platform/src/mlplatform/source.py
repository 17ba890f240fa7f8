"""The code that a job ran: commit and diff of its folder, read where it is submitted.

Ray leaves `.git` out of the packages it sends, so both travel in the job's metadata, which Ray hands to the driver in
one environment variable.
"""

from __future__ import annotations

import base64
import functools
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

from mlplatform.settings import environment, settings

MAX_PACKED = 64 * 1024
"""Characters of a packed diff. Linux takes no environment variable over 128 KiB, and Ray puts into the driver's one
what else the job carries, such as its runtime environment."""

_MAX_NEW_FILE = 256 * 1024
"""Bytes of a file that git does not know yet; what is larger is data rather than code."""

_MAX_COMMAND = 4096


def commit(folder: Path) -> str | None:
    """Commit of the folder's repository; None without git or outside of a repository."""
    answer = git(folder, "rev-parse", "--verify", "HEAD")
    return answer.strip() if answer else None


def diff(folder: Path) -> str | None:
    """How the folder differs from its commit, new files included, for `git apply` at the repository's root.

    Returns:
        The diff; None for a clean tree, and where there is no commit.
    """
    repository = git(folder, "rev-parse", "--absolute-git-dir")
    if repository is None or commit(folder) is None:
        return None
    listed = git(folder, "ls-files", "-z", "--others", "--exclude-standard") or ""
    files = (folder / name for name in listed.split("\0") if name)
    new = [str(file.relative_to(folder)) for file in files if file.is_file() and file.stat().st_size <= _MAX_NEW_FILE]
    # New files show in a diff once they are announced in an index: in a copy, for the person's own is theirs.
    with tempfile.TemporaryDirectory(prefix="mlplatform-") as scratch:
        copy = Path(scratch) / "index"
        if (own := Path(repository.strip()) / "index").is_file():
            shutil.copy2(own, copy)
        if new:
            announce = ("add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul")
            git(folder, *announce, given="\0".join(new), index=copy)
        return git(folder, "diff", "--no-color", "--no-ext-diff", "HEAD", "--", ".", index=copy) or None


def describe(folder: Path, command: str) -> dict[str, str]:
    """What a job's metadata says about its source: `entrypoint`, `git_commit`, and `git_diff`, packed.

    A diff that is too large for metadata is left out, which is said on stderr and in its place.
    """
    known: dict[str, str | None] = {"entrypoint": command[:_MAX_COMMAND], "git_commit": commit(folder)}
    if text := diff(folder):
        packed = pack(text)
        if len(packed) > MAX_PACKED:
            said = (
                f"The uncommitted changes in {folder} are {len(text) >> 10} KiB, too many for the job's metadata, "
                "so the run does not keep them; commit them."
            )
            print(said, file=sys.stderr, flush=True)
            packed = pack(f"# {said}\n")
        known["git_diff"] = packed
    return {key: value for key, value in known.items() if value}


def pack(text: str) -> str:
    """Text as few ASCII characters: zlib, then base64."""
    return base64.b64encode(zlib.compress(text.encode(errors="surrogateescape"), 9)).decode()


def unpack(packed: str) -> str:
    """The text that `pack` was given; bytes that are no UTF-8 are shown as the replacement character."""
    return zlib.decompress(base64.b64decode(packed)).decode(errors="replace")


def add_to_submission(
    *,
    entrypoint: tuple[str, ...] = (),
    working_dir: str | None = None,
    runtime_env: str | None = None,
    runtime_env_json: str | None = None,
    **_: Any,
) -> None:
    """Let a plain `ray job submit` say who submits what: Ray calls this where RAY_JOB_SUBMIT_HOOK names it.

    The hook gets the command's arguments, but neither the client, which does not exist yet, nor, where the person gave
    no `--metadata-json`, anything that metadata could be put into (`ray/dashboard/modules/job/cli.py`). So the client's
    one method for submitting gets a default; the process ends after this submission. What goes wrong is said, and the
    job is submitted as it would be without.

    Args: as Ray passes them, those of `ray job submit`.
    """
    try:
        from ray.job_submission import JobSubmissionClient

        folder = working_dir or _working_dir(runtime_env, runtime_env_json)
        known = {"user": settings().user}
        if folder and Path(folder).is_dir():
            known |= describe(Path(folder), shlex.join(entrypoint))
    except Exception as error:
        print(f"The job's user and commit are not recorded: {error}", file=sys.stderr, flush=True)
        return
    submit = JobSubmissionClient.submit_job

    @functools.wraps(submit)
    def submit_job(self: Any, *, metadata: dict[str, str] | None = None, **options: Any) -> Any:
        return submit(self, metadata={**known, **(metadata or {})}, **options)

    JobSubmissionClient.submit_job = submit_job


def git(folder: Path, *arguments: str, given: str | None = None, index: Path | None = None) -> str | None:
    """What a git command prints about a folder; None where it fails, and where there is no git."""
    program = shutil.which("git")
    if program is None:
        return None
    done = subprocess.run(
        [program, "-C", str(folder), *arguments],
        input=given,
        env={**environment(), **({"GIT_INDEX_FILE": str(index)} if index else {})},
        capture_output=True,
        encoding="utf-8",
        # A diff shows files as they are, whatever their encoding.
        errors="surrogateescape",
        check=False,
    )
    return done.stdout if done.returncode == 0 else None


def _working_dir(runtime_env: str | None, runtime_env_json: str | None) -> str | None:
    """The folder that a runtime environment names: a YAML file's or a JSON text's."""
    if runtime_env_json:
        found = json.loads(runtime_env_json)
    elif runtime_env:
        import yaml

        found = yaml.safe_load(Path(runtime_env).read_text()) or {}
    else:
        return None
    return str(found["working_dir"]) if "working_dir" in found else None
