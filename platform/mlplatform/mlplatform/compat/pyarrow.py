"""Texts of pyarrow's errors, the only carriers of S3's error codes; seen in pyarrow 25.0.1 (Arrow C++ 25)."""

from __future__ import annotations

_AWS = "AWS Error"
"""Prefix of each error of an S3 request (`cpp/src/arrow/filesystem/s3_internal.h`, ErrorToStatus)."""

_FINAL = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "VALIDATION")
"""Arrow's names of the errors that retrying does not fix (`aws-cpp-sdk-s3`, S3Errors)."""


def is_outage(error: Exception) -> bool:
    """Return whether an error means that the S3 server is unavailable, rather than that it rejects the request."""
    text = str(error)
    return isinstance(error, OSError) and _AWS in text and not any(reason in text for reason in _FINAL)
