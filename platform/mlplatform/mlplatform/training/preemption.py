"""Checkpoint of a Lightning training in the middle of an epoch, before its node is removed."""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import ray.train
from lightning import pytorch as pl
from ray.train.collective import broadcast_from_rank_zero
from ray.train.lightning import RayTrainReportCallback

_CHECK_EVERY_SECONDS = 1.0
"""Ray Train receives a notice within a second; each check costs each rank one message to an actor."""


class PreemptionCheckpoint(pl.Callback):
    """Lightning callback that reports a checkpoint before a node's grace period ends, however long an epoch takes.

    Use it together with Ray's `RayTrainReportCallback`, which reports one at the end of each epoch. Both write the same
    file, so the same `ckpt_path` resumes from either. The report has `epoch` and `step` as Ray's has; metrics that are
    measured at the end of the epoch are NaN in it, so that every other checkpoint counts as better. After a resume, the
    epoch continues for the number of batches that it still lacks. The data loader decides which batches these are, and
    Lightning warns if it keeps no state.
    """

    def __init__(self) -> None:
        self._batches_until_check = 1
        self._saved = False
        self._checked_at = time.monotonic()
        self._batches = 0

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._batches += 1
        gradients_pending = (batch_idx + 1) % trainer.accumulate_grad_batches != 0
        # The end of the epoch has its own checkpoint, of the same step.
        if self._saved or gradients_pending or trainer.is_last_batch or self._batches < self._batches_until_check:
            return
        if ray.train.get_preemption_info() is None:
            self._plan()
        else:
            self._saved = True
            self._report(trainer)

    def _plan(self) -> None:
        """Choose the batch of the next check. All ranks must check after the same batch, so rank 0 decides."""
        passed = time.monotonic() - self._checked_at
        self._batches_until_check = broadcast_from_rank_zero(math.ceil(self._batches * _CHECK_EVERY_SECONDS / passed))
        self._batches, self._checked_at = 0, time.monotonic()

    def _report(self, trainer: pl.Trainer) -> None:
        metrics = dict.fromkeys(trainer.callback_metrics, math.nan)
        metrics |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
        with tempfile.TemporaryDirectory() as folder:
            trainer.save_checkpoint(Path(folder) / RayTrainReportCallback.CHECKPOINT_NAME)
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))
