"""Exception tree of the package.

    PlatformError                 base; the message has the wrong value and the command or setting that fixes it
    ├── SettingsError             a setting is missing, unknown or contradicts another
    ├── HostError                 this machine cannot run the stack as configured
    ├── UnreachableError          a service did not answer at its address
    ├── AccessError               a service rejected the credentials
    ├── JobError                  a job could not be submitted, or did not succeed
    │   ├── FailedError           it ended FAILED
    │   ├── StoppedError          it ended STOPPED
    │   ├── CapacityError         neither one node nor all together can ever run it
    │   └── FencedError           this attempt of the job was replaced by a later one
    ├── StorageError              a bucket, an object or a folder could not be used
    └── RegistryError             a model, version or alias is missing, or a promotion was rejected

`mlplatform_gateway.errors` adds the gateway's branches, which never leave its process except as HTTP responses.

The command line prints the message of any of them in one sentence and exits with `exit_code`, on which scripts rely:
docs/people.md lists the codes. It prints a traceback only for an exception outside of this tree, because that is a
defect of the package.
"""


class PlatformError(Exception):
    """Base of all errors that the package raises on purpose."""

    exit_code = 1


class SettingsError(PlatformError):
    """A setting is missing, unknown or contradicts another; the message names the variable and the value."""

    exit_code = 2


class HostError(PlatformError):
    """This machine cannot run the stack as configured; the message has one line per problem."""


class UnreachableError(PlatformError):
    """A service did not answer; the message names the service, its address and how to start it."""

    exit_code = 7


class AccessError(PlatformError):
    """A service answered 401 or 403; the message names the credentials that were used."""

    exit_code = 6


class JobError(PlatformError):
    """A job could not be submitted, was not found or did not end SUCCEEDED."""


class FailedError(JobError):
    """A job ended FAILED; the message has the last line of the reason."""

    exit_code = 3


class StoppedError(JobError):
    """A job ended STOPPED; the message has the last line of the reason."""

    exit_code = 4


class CapacityError(JobError):
    """A job requests more than the nodes can ever provide; the message names the largest shape that fits."""

    exit_code = 5


class FencedError(JobError):
    """This attempt of the job was replaced by a later one, so it may not write; a retry does not help."""


class StorageError(PlatformError):
    """A bucket, an object or a folder is missing or cannot be written."""


class RegistryError(PlatformError):
    """A registered model, a version or an alias is missing, or a promotion was rejected."""
