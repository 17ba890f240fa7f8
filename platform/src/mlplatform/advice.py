"""Advice for jobs that need pretrained weights where no model hub can be reached."""

from __future__ import annotations

import traceback

ADVICE = (
    "A model hub cannot be reached from here, and the requested files are not in the cache: fetch them on a machine "
    "with a connection, then run `make cache FROM=~/.cache` on the stack's host with that machine's folder, whose "
    "huggingface/hub and torch are copied to /shared/cache, where every job looks, and to the notebook's own cache."
)

_SIGNS = (
    ("huggingface_hub.errors.LocalEntryNotFoundError",),
    ("huggingface_hub.errors.OfflineModeIsEnabled",),
    ("We couldn't connect to 'https://huggingface.co'",),
    ("torch/hub.py", "URLError"),
    ("the repo could not be found in the cache",),
)
"""Texts in the traceback of a hub's client that has no connection; all texts of any one tuple must occur."""


def advice_in(text: str) -> str | None:
    """Return the advice for a job that ended with this text; None if a hub is not the reason, or the text has it."""
    if ADVICE in text or not any(all(word in text for word in sign) for sign in _SIGNS):
        return None
    return ADVICE


def advice_for(error: BaseException) -> str | None:
    """Return the advice for an exception, also for one that another process has passed on as text."""
    return advice_in("".join(traceback.format_exception(error)))
