"""Names on which separate processes agree: MLflow tags, the report line, headers, attempt ids, packed diffs."""

from __future__ import annotations

import base64
import re
import zlib

TAG_JOB = "mlplatform.job_id"

TAG_ATTEMPT = "mlplatform.attempt"

TAG_ROLE = "mlplatform.role"
"""`job` marks the parent run of a job; runs that user code starts have the job's id without it."""


def fit_tag(fit: str) -> str:
    """Return the tag that marks a run opened by the script itself as that of a training; its value is the name.

    A run may track several. MLflow restricts the characters of tags, so the tag has a checksum of the name.
    """
    return f"mlplatform.fit.{zlib.crc32(fit.encode()):08x}"


def param_tag(attempt: int, name: str) -> str:
    """Return the tag with the value of a parameter that an attempt has logged after another value was logged.

    MLflow accepts names of at most 250 characters, so a long one is cut.
    """
    return f"param.attempt-{attempt}.{name}"[:250]


TAG_NODE = "mlplatform.node"

TAG_HOLDER = "mlplatform.held_by"
"""Process that has opened a run, while it is open: a job's driver or one of Ray's workers."""

RUNS = "/platform/attempt/runs"
"""Path below which an attempt reports its runs to the gateway."""

SSH = "/mlplatform/ssh"
"""Path at which the agent of a node makes an SSH connection of a request."""

DEV = "MLPLATFORM_DEV"
"""Variable of the process of a dev environment, whose folder and variables sessions have."""

DEV_READY = "mlplatform: the dev environment is ready on"
"""Beginning of the line of the log that an attempt of a dev environment prints; its number ends the line."""

GATEWAY_HEADER = "X-MLPlatform-Gateway"
"""Header of every response of the gateway, with its version."""

REPORT = "mlplatform report"
"""Prefix of a line of the job's log that holds a report as JSON."""

LOCAL_USER = "local"
"""Name of everybody at the embedded platform's MLflow, which checks the password only."""

OMITTED = re.compile(r"mlplatform: [\d.]+ MiB of this log \((\d+) lines\) were omitted here\.")
"""Line that stands for the omitted middle of a long log; the group counts the lines that the reader has not seen."""

ATTEMPT_ID = re.compile(r"--\d+-[0-9a-f]{6}$")
"""End of the ids under which the gateway submits the attempts of a job to Ray; ids chosen by users must not match."""

PERSON_NAME = re.compile(r"[a-z](?:-?[a-z0-9]){1,29}", re.ASCII)
"""Name of a person or a team: in lower case and short enough for a bucket `ray-<team>`, which has 3 to 63 characters,
and of characters that MLflow accepts in an account."""

PERSON_TOKEN = re.compile(r"mlp_([a-z0-9]{20})_([A-Za-z0-9]{40})", re.ASCII)
"""Token of a person or an attempt: its id, which is not a secret, and its secret. Passwords in this form are sent to
the platform's own MLflow only."""

MAX_COMMAND = 4096
"""Maximum number of characters of the job's command in its metadata."""

MAX_PACKED = 64 * 1024
"""Maximum length of a packed diff. Linux accepts environment variables of up to 128 KiB, and Ray puts the diff into one
variable of the driver together with the rest of the job's configuration, such as its runtime environment."""


def pack(text: str) -> str:
    """Pack text into few ASCII characters: zlib, then base64."""
    return base64.b64encode(zlib.compress(text.encode(errors="surrogateescape"), 9)).decode()


def unpack(packed: str) -> str:
    """Return the text that was packed; bytes that are not UTF-8 become the replacement character."""
    return zlib.decompress(base64.b64decode(packed)).decode(errors="replace")


STARTED_WARM, STARTED_COLD = "mlplatform: the program started warm", "mlplatform: the program started cold: "
"""Line of a job's log, and the beginning of one: how `mlplatform_warm` started a program of its entry point."""

TAG_END_REASON = "mlplatform.end_reason"
"""Reason why a run was ended from outside; a run that ended by itself has none."""

TAG_DIGEST = "mlplatform.digest"
"""Tag of a model's version: one digest over the names and contents of its files."""

CHECKSUMS = "SHA256SUMS"
"""Name of the file with a model's checksums, beside the files that it lists."""

BACKUP_SERVERS = ("s3:", "rest:")
"""Beginnings of the addresses of backups that are not folders of the host."""

BACKUP_SUCCEEDED, BACKUP_TIMER = "succeeded", "timer"
"""Files whose times are those of the last complete backup, and of the first start of the timer of backups."""

MLFLOW_CHANGES = "/platform/mlflow/changes"
"""Path of the gateway to which the MLflow server reports changes."""

MODEL_DIGESTS = "/platform/models/digests"
"""Path of the gateway that answers with the digests of the files of a registered model's version."""
