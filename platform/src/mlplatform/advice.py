"""Pretrained weights where no hub can be reached: how a job that lacks them is told to fill the cache."""

from __future__ import annotations

import traceback

ADVICE = (
    "A model hub cannot be reached from here, and what was asked for is not in the cache: fetch it on a machine that "
    "can, then run `make cache SRC=~/.cache` on the stack's host with that machine's folder, whose huggingface/hub and "
    "torch are put into /shared/cache, where every job and notebook looks."
)

_SIGNS = (
    ("huggingface_hub.errors.LocalEntryNotFoundError",),
    ("huggingface_hub.errors.OfflineModeIsEnabled",),
    ("We couldn't connect to 'https://huggingface.co'",),
    ("torch/hub.py", "URLError"),
    ("the repo could not be found in the cache",),
)
"""What stands in the traceback of a hub's client that got nothing; one line is enough, all of its words are needed."""


def advice_in(text: str) -> str | None:
    """What to tell who reads that a job ended with this text; None if no hub is the reason, or it says so already."""
    if ADVICE in text or not any(all(word in text for word in sign) for sign in _SIGNS):
        return None
    return ADVICE


def advice_for(error: BaseException) -> str | None:
    """The same for an exception, which may have come from another process as text."""
    return advice_in("".join(traceback.format_exception(error)))
