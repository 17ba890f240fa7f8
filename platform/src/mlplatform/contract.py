"""Names on which separate processes agree: MLflow tags, the report line, headers, attempt ids, packed diffs."""

from __future__ import annotations

import base64
import re
import zlib

TAG_JOB = "mlplatform.job_id"

TAG_ATTEMPT = "mlplatform.attempt"

TAG_ROLE = "mlplatform.role"
"""`job` marks the parent run of a job; runs that user code starts carry the job's id without it."""

TAG_FIT = "mlplatform.fit"
"""The training that was tracked in a run which the script has opened by itself."""

TAG_NODE = "mlplatform.node"

TAG_HOLDER = "mlplatform.held_by"
"""While a run is open: whether a job's driver or one of Ray's workers has opened it."""

GATEWAY_HEADER = "X-MLPlatform-Gateway"
"""In every answer that comes through the stack's gateway, with its version."""

REPORT = "mlplatform report"
"""Starts the line of the job's log that carries a report as JSON."""

ATTEMPT_ID = re.compile(r"--\d+-[0-9a-f]{6}$")
"""How the ids end under which Ray knows the attempts of a job of the gateway; people's ids must not."""

MAX_PACKED = 64 * 1024
"""Characters of a packed diff. Linux takes no environment variable over 128 KiB, and Ray puts into the driver's one
what else the job carries, such as its runtime environment."""


def pack(text: str) -> str:
    """Text as few ASCII characters: zlib, then base64."""
    return base64.b64encode(zlib.compress(text.encode(errors="surrogateescape"), 9)).decode()


def unpack(packed: str) -> str:
    """The text that `pack` was given; bytes that are no UTF-8 are shown as the replacement character."""
    return zlib.decompress(base64.b64decode(packed)).decode(errors="replace")


TAG_END_REASON = "mlplatform.end_reason"
"""Why a run was ended from outside; a run that ended by itself has none."""
