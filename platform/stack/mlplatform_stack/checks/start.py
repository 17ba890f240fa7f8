"""Problems that prevent a start, settings that do not fit, files of `secrets/`, and what jobs can reach on a cloud."""

from __future__ import annotations

from collections.abc import Iterator

from mlplatform.errors import HostError
from mlplatform_stack import networks, preflight, secrets_folder, sizing, unfinished
from mlplatform_stack.checks.finding import Finding, Place
from mlplatform_stack.host import this_host


def start_problems(place: Place) -> Iterator[Finding]:
    """Yield what `make up` refuses to start with: engine, drivers, disk, images, ports and networks."""
    try:
        preflight.check_host(place.root, place.only)
    except HostError as error:
        for line in str(error).splitlines():
            yield _of_sentence(line, "The stack cannot start like this.", blocks=True)


def interrupted(place: Place) -> Iterator[Finding]:
    """Yield an upgrade, a rotation of secrets or a restore that was interrupted."""
    for _, sentence in unfinished.interrupted(place.root):
        why = "Services are stopped, or have a part of their data or secrets only."
        yield _of_sentence(sentence, why, blocks=True)


def misfits(place: Place) -> Iterator[Finding]:
    """Yield the settings that no longer fit this host."""
    for sentence in sizing.misfits(place.settings, this_host()):
        yield _of_sentence(sentence, "Jobs run out of memory, or leave hardware unused.")


def _of_sentence(sentence: str, why: str, *, blocks: bool = False) -> Finding:
    """Return the finding of a sentence that has the problem, a colon and the fix."""
    problem, _, fix = sentence.partition(": ")
    return Finding(problem, why, fix or sentence, blocks)


def quotas(place: Place) -> Iterator[Finding]:
    """Yield quotas that nothing enforces: S3 has no interface for them, so they are set at our own store only."""
    if (server := place.settings.s3_endpoint_url) and (limits := place.settings.bucket_quotas):
        yield Finding(
            f"BUCKET_QUOTAS={limits} has no effect at S3_ENDPOINT_URL={server}.",
            "A bucket can grow until that server's disk is full.",
            "set quotas at that server, and leave BUCKET_QUOTAS empty in .env",
        )


def secret_files(place: Place) -> Iterator[Finding]:
    """Yield a folder that other users can open, and secrets that are missing or empty."""
    folder = place.root / "secrets"
    if folder.is_dir() and (mode := folder.stat().st_mode & 0o777) != 0o700:
        yield Finding(
            f"{folder} has the mode {mode:04o} instead of 0700.",
            "Its files are readable by all, so that the folder's mode alone keeps other users of this host out.",
            f"chmod 700 {folder}",
            repair=lambda: folder.chmod(0o700),
        )
    names = secrets_folder.names(place.root)
    paths = [folder / name for name in names]
    if missing := [path.name for path in paths if not path.exists() or not path.stat().st_size]:
        yield Finding(
            f"{len(missing)} files of {folder} are missing or empty: {', '.join(missing)}.",
            "A service without its password does not start, or falls back to a known one.",
            "make env",
            blocks=True,
            repair=lambda: secrets_folder.write_missing(folder, names),
        )


def no_timer(place: Place) -> Iterator[Finding]:
    """Yield that no backups are made on a timer; with one, the alert `BackupTooOld` watches it."""
    if not place.settings.backup_to:
        yield Finding(
            "BACKUP_TO in .env is empty, so backups are made by `make backup` only.",
            "Whatever was added since the last one is lost with this host's disk.",
            "set BACKUP_TO in .env to a folder on another disk or to a server, and run `make up`",
        )


def metadata_address(place: Place) -> Iterator[Finding]:
    """Yield that containers can reach the metadata address of the host's cloud."""
    for note in networks.metadata_notes(place.settings):
        why = "A job could act with the rights of the host at the provider of the cloud."
        yield Finding(f"{note.partition('. ')[0]}.", why, networks.METADATA_RULE)
