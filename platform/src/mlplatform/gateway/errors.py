"""Errors of the gateway, a branch of `mlplatform.errors`; `http.errors` maps each to its HTTP status.

PlatformError
├── JobError
│   ├── NoSuchJobError        no job has the id
│   ├── JobExistsError        the id of a new job is in use
│   ├── JobIsOpenError        a job that has not ended cannot be deleted
│   ├── NotResumableError     a job that is open or has succeeded cannot be resumed
│   └── RefusedError          Ray rejects the job for good
├── StorageError
│   └── PackageError          a package was rejected
│       ├── NoSuchPackageError
│       ├── PackageExistsError
│       └── PackageTooLargeError
├── ForbiddenError            the person may not do this
├── PersonError               a name or a value of a person or a team is invalid
│   ├── NoSuchNameError       no person, team or token has the name
│   ├── NameTakenError        the name of a new team is in use, or a token belongs to somebody else
│   └── TeamInUseError        the removal of a team has consequences that nobody has confirmed
├── TokenError                a person's token is wrong, expired or revoked
├── LoginCodeError            a log-in code is wrong, used or expired
├── DiskFullError             a disk has too little room for new jobs
├── UnknownJobError           no job is known for a log file, at least not yet
├── JobGoneError              the job of a log file was deleted
├── LogsBusyError             the log store is unavailable and the buffer is full
└── RequestError              the request is invalid
    ├── ClientGoneError       the client disconnected before the end of its request
    ├── StalledRequestError   the request's body stopped arriving
    └── BodyTooLargeError     the body exceeds the limit
"""

from mlplatform.errors import JobError, PlatformError, StorageError


class NoSuchJobError(JobError):
    """No job has the id."""


class JobExistsError(JobError):
    """The id of a new job is in use."""


class JobIsOpenError(JobError):
    """A job that has not ended cannot be deleted."""

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(
            f"Attempted to delete job '{job_id}', but it is in a non-terminal state {status}; stop it first."
        )


class NotResumableError(JobError):
    """A job that is open or has succeeded cannot be resumed."""


REJECTS = "Ray rejects the job"
"""Beginning of the message about a job that Ray rejects; Ray's reason follows."""


class RefusedError(JobError):
    """Ray rejects the job, and a retry would not help."""


class PackageError(StorageError):
    """A package was rejected: its name or its content is invalid."""


class NoSuchPackageError(PackageError):
    """No package has the name."""


class PackageExistsError(PackageError):
    """A package with the same name and other content exists."""


class PackageTooLargeError(PackageError):
    """A package exceeds the size limit."""


class ForbiddenError(PlatformError):
    """The person may not do this; the message names who may."""


class PersonError(PlatformError):
    """A name or a value of a person or a team is invalid."""


class NoSuchNameError(PersonError):
    """No person, team or token has the name."""


class NameTakenError(PersonError):
    """The name of a new team is in use, or a token belongs to somebody else."""


class TeamInUseError(PersonError):
    """The removal of a team has consequences that nobody has confirmed."""


class TokenError(PlatformError):
    """A person's token is wrong, expired or revoked.

    Args:
        message: the sentence for the client.
        person: owner of the token; empty if it is wrong.
    """

    def __init__(self, message: str, person: str = "") -> None:
        super().__init__(message)
        self.person = person


class LoginCodeError(PlatformError):
    """A log-in code is wrong, used or expired."""


class DiskFullError(PlatformError):
    """A disk has too little room for new jobs."""


class QueueFullError(PlatformError):
    """A person or a team has as many waiting jobs as allowed."""


class UnknownJobError(PlatformError):
    """No job is known for a log file, at least not yet."""


class JobGoneError(PlatformError):
    """The job of a log file was deleted."""


class LogsBusyError(PlatformError):
    """The log store is unavailable and the buffer is full; send the lines again."""


class RequestError(PlatformError):
    """The request is invalid; the message names the part and its value."""


class ClientGoneError(RequestError):
    """The client disconnected before the end of its request."""


class StalledRequestError(RequestError):
    """The request's body stopped arriving."""


class BodyTooLargeError(RequestError):
    """The body of the request exceeds the limit."""
