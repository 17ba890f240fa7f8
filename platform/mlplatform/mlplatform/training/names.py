"""Names of a job's trainings that its script does not name, the same in each attempt, so that they resume.

`mlplatform.pth` imports this when Python starts, for scripts that import nothing of the platform.
"""

from __future__ import annotations

import itertools
import sys

from mlplatform.compat.ray_train_names import name_trainings

_fits: dict[str | None, itertools.count[int]] = {}


def next_name(trial: str | None = None) -> str:
    """Return the name of this process's next training within the job: "0", "1", ...; in a trial "<trial id>-0"."""
    number = next(_fits.setdefault(trial, itertools.count()))
    return f"{trial}-{number}" if trial else str(number)


def default_name(trial: str | None) -> str | None:
    """Return `<job id>/<name>`; None outside of jobs, and where the next attempt might count otherwise.

    Only the main thread of the job's own command starts trainings in an order that is always the same.
    """
    import threading

    from mlplatform.settings.job import settings

    job = settings()
    in_main = threading.current_thread() is threading.main_thread()
    counts = job.job_id and (trial or (in_main and is_own_command(job.entrypoint or "")))
    return f"{job.job_id}/{next_name(trial)}" if counts else None


def is_own_command(entrypoint: str) -> bool:
    """Return whether this process is the job's command, `X=1 python train.py`, also after `cd folder &&`.

    Programs that a script or a loop of the shell starts, perhaps several at once, are not.
    """
    import shlex
    from multiprocessing import parent_process

    try:
        words = shlex.split(entrypoint)
    except ValueError:
        return False
    own = sys.orig_argv[1:]
    before = words[: len(words) - len(own)]
    if not own or words != [*before, *own] or parent_process():
        return False
    prepared = len(before) - before[::-1].index("&&") if "&&" in before else 0
    # `X=1 python`. Of `python train.py && python train.py`, neither: both would be the first.
    return own[0] not in before and all("=" in word for word in before[prepared:-1])


name_trainings(default_name)
