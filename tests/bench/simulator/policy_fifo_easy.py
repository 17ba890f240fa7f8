"""FIFO with EASY backfill, the common baseline of batch schedulers."""

from __future__ import annotations

from collections.abc import Sequence

from backfill import start_in_order

from mlplatform.scheduling.queue import Action, View


class FifoEasy:
    """Start jobs in order of arrival; one reservation, for the oldest that does not fit.

    Modelled: the whole of Lifka's algorithm, with the jobs' time limits as estimates. The reservation is computed again
    at each decision, so a job that ends early moves it forward. Teams and persons play no part.
    """

    name = "FIFO + EASY"
    timed = False

    def decide(self, view: View) -> Sequence[Action]:
        return start_in_order(view, sorted(view.waiting, key=lambda job: job.sequence))
