"""Name that pickles of version 0.1.0 contain: a search stored by the stack has its file system in `tuner.pkl`.

Without it, a search that runs across an upgrade could not be restored. The code is `storage.filesystem`.
"""

from mlplatform.storage.filesystem import RetryingHandler

__all__ = ["RetryingHandler"]
