"""Errors of the gateway, a branch of `mlplatform.errors`, with the HTTP status of the response where there is one."""

from mlplatform.errors import JobError, PlatformError, StorageError


class NoSuchJobError(JobError):
    """No job has the id."""

    status = 404


class JobExistsError(JobError):
    """The id of a new job is in use."""

    status = 409


class JobIsOpenError(JobError):
    """A job that has not ended cannot be deleted."""

    status = 409

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(
            f"Attempted to delete job '{job_id}', but it is in a non-terminal state {status}; stop it first."
        )


class NotResumableError(JobError):
    """A job that is open or has succeeded cannot be resumed."""

    status = 409


class DependencyError(JobError):
    """A new job is to start after one that does not exist or cannot succeed."""

    status = 409


REJECTS = "Ray rejects the job"
"""Beginning of the message about a job that Ray rejects; Ray's reason follows."""


class RefusedError(JobError):
    """The job cannot be started, and a retry would not help."""


class PackageError(StorageError):
    """A package was rejected: its name or its content is invalid."""

    status = 400


class NoSuchPackageError(PackageError):
    """No package has the name."""

    status = 404


class PackageExistsError(PackageError):
    """A package with the same name and other content exists."""

    status = 409


class PackageTooLargeError(PackageError):
    """A package exceeds the size limit."""

    status = 413


class ForbiddenError(PlatformError):
    """The person may not do this; the message names who may."""

    status = 403


class PersonError(PlatformError):
    """A name or a value of a person or a team is invalid."""

    status = 400


class NoSuchNameError(PersonError):
    """No person, member, team, token or secret has the name."""

    status = 404


class NameTakenError(PersonError):
    """The name of a new team is in use, or a token belongs to somebody else."""

    status = 409


class TeamInUseError(PersonError):
    """The removal of a team affects people or jobs, and the request does not confirm that."""

    status = 409


class TokenError(PlatformError):
    """A person's token is wrong, expired or revoked.

    Args:
        message: the sentence for the client.
        person: owner of the token; empty if it is wrong.
    """

    status = 403

    def __init__(self, message: str, person: str = "") -> None:
        super().__init__(message)
        self.person = person


class LoginCodeError(PlatformError):
    """A log-in code is wrong, used or expired."""

    status = 403


class NoShellError(PlatformError):
    """No shell can be opened in the job now."""

    status = 409


class DiskFullError(PlatformError):
    """A disk has too little room for new jobs."""

    status = 507


class QueueFullError(PlatformError):
    """A person or a team has as many waiting jobs as allowed."""

    status = 429


class UnknownJobError(PlatformError):
    """No job is known for a log file, at least not yet."""

    status = 404


class JobGoneError(PlatformError):
    """The job of a log file was deleted."""

    status = 410


class LogsBusyError(PlatformError):
    """The log store is unavailable and the buffer is full; send the lines again."""

    status = 503


class RequestError(PlatformError):
    """The request is invalid; the message names the part and its value."""

    status = 400


class ClientGoneError(RequestError):
    """The client disconnected before the end of its request."""


class StalledRequestError(RequestError):
    """The request's body stopped arriving."""

    status = 408


class BodyTooLargeError(RequestError):
    """The body of the request exceeds the limit."""

    status = 413
