"""The one exception tree of the package.

    PlatformError                 base: what is wrong, with the value, and what to do
    ├── SettingsError             a setting is missing, unknown or contradicts another
    ├── HostError                 this machine cannot run the stack as configured
    ├── UnreachableError          a service did not answer at its address
    ├── AccessError               a service refused the credentials
    ├── JobError                  a job could not be submitted, or did not succeed
    │   ├── CapacityError         no node, or not all of them together, can ever run it
    │   └── FencedError           this attempt of the job was replaced by a later one
    ├── StorageError              a bucket, an object or a folder could not be used
    └── RegistryError             a model, version or alias is not as asked

The command line prints the message of any of them in one sentence and exits with `exit_code`; a traceback
is printed only for what is not in this tree, because that is a defect of ours.
"""


class PlatformError(Exception):
    """Base of all errors that the package raises on purpose."""

    exit_code = 1


class SettingsError(PlatformError):
    """A setting is missing, unknown or contradicts another; the message names the variable and the value."""

    exit_code = 2


class HostError(PlatformError):
    """This machine cannot run the stack as configured; each problem stands on a line of its own."""


class UnreachableError(PlatformError):
    """A service did not answer; the message names the service, its address and how to start it."""


class AccessError(PlatformError):
    """A service answered 401 or 403; the message names the credentials that were used."""


class JobError(PlatformError):
    """A job could not be submitted, was not found or did not end SUCCEEDED."""


class CapacityError(JobError):
    """A job asks for what the nodes can never give; the message names the largest shape that fits."""


class FencedError(JobError):
    """This attempt of the job was replaced by a later one, so it may write nothing; trying again is of no use."""


class StorageError(PlatformError):
    """A bucket, an object or a folder is missing or cannot be written."""


class RegistryError(PlatformError):
    """A registered model, a version or an alias is not there, or a promotion was refused."""
