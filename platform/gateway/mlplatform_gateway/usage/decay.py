"""Use of resources that decays with a half-life, so that recent use counts more than past use.

For a job that holds a rate `r` from one time to another, the decayed use at a later time is the integral of
`r * 2 ** -(age / half-life)` over that interval. It has a closed form, so nothing is sampled: the result is the same
however often and whenever it is asked for. Slurm and HTCondor decay the same way, but in periodic steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HALF_LIFE_SECONDS = 2 * 24 * 3600.0


@dataclass(frozen=True)
class Decayed:
    """Decayed use at a time, in GPU-seconds.

    Attributes:
        value: the use.
        at: time for which it holds, in seconds since 1970.
        half_life_s: time in which it halves.
    """

    value: float = 0.0
    at: float = 0.0
    half_life_s: float = HALF_LIFE_SECONDS

    def later(self, at: float, held: float = 0.0) -> Decayed:
        """Return the use at a later time.

        Args:
            at: seconds since 1970; an earlier time, of a clock that was set back, counts as no time passed.
            held: rate at which it was charged all the time in between, of `mlplatform.capacity.resources.rate()`.
        """
        passed = max(0.0, at - self.at) / self.half_life_s
        # `expm1` keeps the digits that 1 - 2 ** -x would lose for the half second between two plans.
        gained = -math.expm1(-passed * math.log(2)) * self.half_life_s / math.log(2)
        return Decayed(self.value * 2**-passed + held * gained, max(at, self.at), self.half_life_s)
