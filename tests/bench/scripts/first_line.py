"""Print the time (Unix) at which the imports of a training have ended."""

import time

import lightning  # noqa: F401 - its import is what is measured
import mlflow  # noqa: F401
import ray  # noqa: F401
import torch  # noqa: F401

print(time.time(), flush=True)
