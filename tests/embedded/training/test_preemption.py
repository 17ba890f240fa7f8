"""Preemption notices during an epoch of a real Lightning training; a stand-in plays the Ray worker group."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import ray.train
import torch
from lightning import pytorch as pl
from torch.utils.data import DataLoader, TensorDataset

from mlplatform.training import preemption

pytestmark = pytest.mark.usefixtures("clean_environment")

BATCHES = 8
NOTICE_AT = 11
"""The third batch of the second epoch."""


class Line(pl.LightningModule):
    """A model that records the batches that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[tuple[int, int]] = []

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        self.seen.append((self.current_epoch, index))
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[0])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", 0.5)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class Group:
    """Ray Train as one worker sees it: delivers notices and records reports."""

    def __init__(self, notice_from: int = NOTICE_AT, batches_per_second: int = 1) -> None:
        self.asked: list[int] = []
        self.reports: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.model = Line()
        self._notice_from, self._batches_per_second = notice_from, batches_per_second

    def get_preemption_info(self) -> object | None:
        self.asked.append(len(self.model.seen))
        return object() if len(self.model.seen) >= self._notice_from else None

    def broadcast_from_rank_zero(self, mine: int) -> int:
        assert mine >= 1
        return self._batches_per_second

    def report(self, metrics: dict[str, Any], checkpoint: ray.train.Checkpoint) -> None:
        self.reports.append((metrics, torch.load(Path(checkpoint.path) / "checkpoint.ckpt", weights_only=False)))


def trained(group: Group, monkeypatch: pytest.MonkeyPatch, resume: Path | None = None, **options: Any) -> pl.Trainer:
    monkeypatch.setattr(ray.train, "get_preemption_info", group.get_preemption_info)
    monkeypatch.setattr(ray.train, "report", group.report)
    monkeypatch.setattr(preemption, "broadcast_from_rank_zero", group.broadcast_from_rank_zero)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    options |= {"max_epochs": 3, "accelerator": "cpu", "enable_checkpointing": False, **quiet}
    trainer = pl.Trainer(callbacks=[preemption.PreemptionCheckpoint()], **options)
    data = TensorDataset(torch.arange(float(BATCHES)).reshape(-1, 1) / BATCHES)
    trainer.fit(group.model, DataLoader(data), DataLoader(data), ckpt_path=resume)
    return trainer


def test_preemption_notice_triggers_one_mid_epoch_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    trained(group, monkeypatch)
    ((metrics, checkpoint),) = group.reports
    assert (metrics["epoch"], metrics["step"], checkpoint["global_step"]) == (1, NOTICE_AT, NOTICE_AT)
    assert math.isnan(metrics["val_loss"]), "the validation loss of an unfinished epoch is not NaN"


def test_resumed_epoch_continues_at_next_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stopped = Group()
    trained(stopped, monkeypatch)
    torch.save(stopped.reports[0][1], tmp_path / "checkpoint.ckpt")
    resumed = Group(notice_from=1000)
    trainer = trained(resumed, monkeypatch, resume=tmp_path / "checkpoint.ckpt")
    assert resumed.model.seen == stopped.model.seen[NOTICE_AT:]
    assert trainer.global_step == 3 * BATCHES


def test_all_ranks_poll_at_rank_0_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(notice_from=1000, batches_per_second=5)
    trained(group, monkeypatch)
    assert group.asked == [1, 6, 11, 17, 22], "polled at batches other than expected; 16 and 24 end an epoch"


def test_checkpoint_contains_complete_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(notice_from=3)
    trained(group, monkeypatch, accumulate_grad_batches=2)
    assert [(metrics["step"], checkpoint["global_step"]) for metrics, checkpoint in group.reports] == [(2, 2)]
