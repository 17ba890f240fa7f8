"""A session of an SSH connection: a shell or a command with the environment of a job.

OpenSSH's server starts it as a script, without the packages of the site, so that a command takes milliseconds.
"""

import json
import os
import sys

SFTP = "sftp"
"""Command that stands for OpenSSH's own server of files."""

_SFTP_SERVER = "/usr/lib/openssh/sftp-server"
_SHELL = "/bin/bash"
_OF_CLIENT = ("TERM", "SSH_", "LC_", "LANG")


def main(file: str) -> None:
    """Execute what the client asks for.

    Args:
        file: JSON with the environment of the job, and its folder.
    """
    with open(file) as opened:  # noqa: PTH123 - pathlib takes 5 ms to import
        job = json.load(opened)
    of_client = {name: value for name, value in os.environ.items() if name.startswith(_OF_CLIENT)}
    environment = {**job["environment"], **of_client, "SHELL": _SHELL}
    command = environment.pop("SSH_ORIGINAL_COMMAND", None)
    os.chdir(job["folder"])
    if command == SFTP:
        os.execve(_SFTP_SERVER, [_SFTP_SERVER], environment)  # noqa: S606
    os.execve(_SHELL, [_SHELL, *(["-c", command] if command else [])], environment)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1])
