"""Internal names of Ray Train V2; seen in Ray 2.60.0.

Ray's public `UserCallback` has two hooks, `after_report` and `after_exception`, both in the controller. The internal
callbacks are needed to count reports from the checkpoint at which a training resumes, to send the rest before the
controller ends, and to prepare a worker. Imported by `training` and `tuning` only, which import Ray anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.train import Checkpoint, PreemptionInfo, WorkerGroupError
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.callback import (
    ControllerCallback,
    ReportCallback,
    WorkerCallback,
    WorkerGroupCallback,
)
from ray.train.v2._internal.execution.checkpoint.report_handler import ReportCallbackHandler
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

from mlplatform.compat.patches import around

__all__ = ["ControllerCallback", "ReportCallback", "WorkerCallback", "WorkerGroupCallback"]  # Ray's, for others


def wrap_report(wrap: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    """Replace `ray.train.report` in this training worker with `wrap` of it; no hook sees a report before Ray does.

    On the context's instance, not on its class: Ray creates one for each start of the training function.
    """
    context = get_train_context()
    context.report = wrap(context.report)


def preemption_setter() -> Callable[[float], None]:
    """Return a function that lets `ray.train.get_preemption_info` in this training worker return a deadline.

    The function takes seconds since 1970. All ranks are named as affected, on this worker's node.
    """
    context = get_train_context()
    node = ray.get_runtime_context().get_node_id()

    def set_deadline(deadline: float) -> None:
        ranks = {node: list(range(context.get_world_size()))}
        context.preemption_context.preemption_info = PreemptionInfo(int(deadline * 1000), ranks)

    return set_deadline


@functools.cache
def active_fits() -> set[str]:
    """Return the names of the trainings whose `fit` runs in this process, which stays up to date."""
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    active: set[str] = set()

    @around(DataParallelTrainer, "fit")
    def noted_fit(fit: Any, self: Any) -> Any:
        name = self.run_config.name  # which `ray_train_names` may change meanwhile
        active.add(name)
        try:
            return fit(self)
        finally:
            active.discard(name)

    return active


def outlast_deadline(leaves: Callable[[], bool]) -> None:
    """Let this process, a controller, not restart its workers at the deadline of a preemption if `leaves` returns True.

    Ray expects that a node is gone then; if the whole job leaves, its last checkpoint may still be on its way.
    """

    @around(TrainController, "_is_preemption_deadline_exceeded", once=True)
    def exceeded_unless_leaving(exceeded: Any, *arguments: Any, **options: Any) -> bool:
        return exceeded(*arguments, **options) and not leaves()


class _WokenCleanerCallback(PlacementGroupCleanerCallback):  # type: ignore[misc]
    """Ray's callback, which does not wait for the next look of its cleaner, up to 1 s later, before it ends."""

    _group: Any = None

    def after_worker_group_start(self, worker_group: Any) -> None:
        super().after_worker_group_start(worker_group)
        self._group = worker_group.get_worker_group_state().placement_group_handle.placement_group

    def _stop_cleaner(self) -> None:
        if self._cleaner and self._group:
            # Its thread looks when it gets a placement group, and finds that it should stop.
            self._cleaner.register_placement_group.remote(self._group)
        super()._stop_cleaner()


def end_trainings_at_once() -> None:
    """Let the `fit` of Ray's trainers in this process return without waiting for their cleaner of placement groups."""
    from ray.train.v2.api import data_parallel_trainer

    data_parallel_trainer.PlacementGroupCleanerCallback = _WokenCleanerCallback


def count_deaths_at_start() -> None:
    """Let this process, a controller, count the death of a worker during the start of its group as a worker's failure.

    Ray expects it in two of its three calls to new workers. In the third, which starts the training function, it takes
    it for a failure of its own, and ends the training whatever `max_failures` says.
    """

    @around(WorkerGroup, "_start_impl", once=True)
    def start_group(start: Any, self: Any, *arguments: Any, **options: Any) -> None:
        try:
            start(self, *arguments, **options)
        except RayActorError as error:
            raise WorkerGroupError(f"A worker died while its group started: {error}", {0: error}) from error


def report_before_listing(kind: type[ReportCallback]) -> None:
    """Let this process, a controller, pass each report to callbacks of a class before it lists the report's checkpoint.

    Otherwise, a controller that is lost in between leaves a checkpoint, from which the training resumes, without what
    such a callback writes to it: with the reports that MLflow had not received by then.
    """

    @around(ReportCallbackHandler, "after_worker_group_start", once=True)
    def start_in_order(start: Any, self: Any, worker_group: Any) -> None:
        # Ray's own checkpoint manager, which lists checkpoints, is the first.
        self._report_callbacks.sort(key=lambda callback: not isinstance(callback, kind))
        start(self, worker_group)


def stored_checkpoint(name: str) -> Checkpoint:
    """Return the checkpoint of this name in the training run's storage, as `checkpoint_upload_fn` must return it."""
    place = get_train_context().storage_context
    return Checkpoint(place.build_checkpoint_path_from_name(name), place.storage_filesystem)


def around_reports_without_effect(of_session: Callable[..., Any], of_tune: Callable[..., Any]) -> None:
    """Put functions around `ray.air.session.report`, which does nothing under Train V2, and `ray.tune.report`.

    The latter only warns in a training worker, once, that it is called outside of a trial.
    """
    from ray import tune
    from ray.air import session
    from ray.train._internal import session as train_session
    from ray.tune.trainable import trainable_fn_utils

    for function, modules in ((of_session, (session, train_session)), (of_tune, (tune, trainable_fn_utils))):
        for module in modules:
            around(module, "report", once=True)(function)
