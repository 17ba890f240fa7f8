"""First fit in order of arrival: the queue of this platform up to version 0.4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from backfill import Room, gpus_of

from mlplatform.scheduling.queue import Action, Start, View


class FirstFit:
    """Start each job that fits, oldest first; nothing is reserved for a job that does not, and nothing is preempted.

    Modelled: all of it. Not modelled: `JOB_STARTS`, the number of jobs that are starting at a time.
    """

    name = "first fit"
    timed = False

    def decide(self, view: View) -> Sequence[Action]:
        room, too_large = Room(view.nodes), math.inf
        started: list[Action] = []
        for job in sorted(view.waiting, key=lambda job: job.sequence):
            if room.gpus <= 0:
                break
            if gpus_of(job) >= too_large:
                continue
            if placement := room.take(job.request):
                started.append(Start(job.id, False, placement))
            else:
                too_large = gpus_of(job)
        return started
