"""Advice for failures that users of the platform can cure themselves."""

from __future__ import annotations

import traceback

MODEL_HUB = (
    "A model hub cannot be reached from here, and the requested files are not in the cache: fetch them on a machine "
    "with a connection, then run `make data FROM=~/.cache` on the stack's host with that machine's folder, whose "
    "huggingface/hub and torch are copied to /shared/cache, where every job looks, and to the notebook's own cache."
)

_CURES: dict[str, tuple[tuple[str, ...], ...]] = {
    MODEL_HUB: (
        ("huggingface_hub.errors.LocalEntryNotFoundError",),
        ("huggingface_hub.errors.OfflineModeIsEnabled",),
        ("We couldn't connect to 'https://huggingface.co'",),
        ("torch/hub.py", "URLError"),
        ("the repo could not be found in the cache",),
    ),
    "Remove working_dir from ray.init(runtime_env=...), because the job already runs in its folder, and variables that "
    "--env sets too.": (("Failed to merge the Job's runtime env",),),
    "Add the package with `mlplatform submit --pip PACKAGE`, for all jobs in images/ray/extra-requirements.in; if "
    "it is yours, submit the folder that holds it.": (("ModuleNotFoundError: No module named",),),
    "Add the Debian package that has this library, such as libgl1, to images/ray/packages.txt, and run `make up`.": (
        ("cannot open shared object file",),
    ),
    "The requested packages exclude each other or the platform's; relax their versions.": (
        ("No solution found when resolving dependencies",),
        ("ResolutionImpossible",),
    ),
    "Submit the folder that holds this file; a file in .gitignore is uploaded only if the command names it.": (
        ("can't open file", "[Errno 2]"),
    ),
    "Use a smaller batch or a whole GPU; `mlplatform top` shows who shares it.": (("CUDA out of memory",),),
    "Use fewer data-loader processes, or raise WORKER_MEMORY in .env and run `make up`.": (("running low on memory",),),
    "Use fewer data-loader processes, or raise WORKER_SHM in .env and run `make up`.": (("out of shared memory",),),
    "`make doctor` names the full disk; `make prune APPLY=1` removes what nobody needs.": (
        ("No space left on device",),
    ),
    "Submit with `--gpus 1`, or use ScalingConfig(use_gpu=True) in Ray Train; `mlplatform top` lists the GPUs.": (
        ("No CUDA GPUs are available",),
        ("no NVIDIA driver",),
        ("Torch not compiled with CUDA enabled",),
        ("torch.cuda.is_available() is False",),
    ),
    "Choose another experiment, or run `mlflow experiments restore --experiment-id ID`.": (
        ("deleted experiment",),
        ("The experiment", "must be in the 'active' state"),
    ),
    "Use mlflow.set_experiment, which also takes an experiment that exists.": (("Experiment(name=", "already exists"),),
    "Log it under another name, or as a metric or tag: a parameter keeps its first value.": (
        ("Changing param values is not allowed",),
    ),
}
"""Cure -> groups of texts; all of one group occur where the output of a failed job ends. The first that fits counts."""

_END = 6000
"""Characters at the end of an output that are searched: earlier lines may tell of errors that did not end the job. A
hub's client is the exception: its errors have long causes."""


def advice_in(text: str) -> str | None:
    """Return the advice for a job that ended with this text; None if there is none, or the text has it."""
    end = text[-_END:]
    for cure, groups in _CURES.items():
        searched = text if cure is MODEL_HUB else end
        if any(all(sign in searched for sign in signs) for signs in groups):
            return None if cure in text else cure
    return None


def advice_for(error: BaseException) -> str | None:
    """Return the advice for an exception, also for one that another process has passed on as text."""
    return advice_in("".join(traceback.format_exception(error)))
