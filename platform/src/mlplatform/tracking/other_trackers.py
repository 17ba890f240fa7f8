"""Other trackers beside MLflow: where they write, under which id, and whether a key lets them go online."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlplatform.compat import comet, wandb
from mlplatform.errors import SettingsError
from mlplatform.settings.environment import environment, set_default_environment
from mlplatform.settings.job import settings


@dataclass(frozen=True)
class Tracker:
    """How a tracker keeps the runs of this job.

    Attributes:
        folder: on the storage that all nodes share.
        id: of the run: the job's, and so the same after a restart; None outside of jobs, where the tracker makes one.
        online: whether it sends what is logged to its server.
    """

    folder: Path
    id: str | None
    online: bool = False


def tracker(which: Literal["wandb", "comet", "tensorboard"], name: str | None = None) -> Tracker:
    """Prepare this process for a tracker, and say in one line what it will do.

    Afterwards `wandb.init()`, `comet_ml.start()` and Lightning's loggers need no address, key, mode, folder or id: they
    find them in the process's environment. What the job's own environment says of them stays as it is. A key comes from
    there (WANDB_API_KEY, COMET_API_KEY) or from the client's own file, which the platform mounts on every node; without
    a key, what is logged is kept in files. Call it where the run is opened, in rank 0 of a training.

    Args:
        which: wandb (Weights & Biases), comet or tensorboard.
        name: of this run within the job; needed where a job has several.

    Raises:
        SettingsError: online is asked for, and there is no key; or the folder cannot be written.
    """
    # Both tell their makers of errors of their own, or try to; Comet from its import on.
    _default(COMET_ERROR_TRACKING_ENABLE="false", WANDB_ERROR_REPORTING="false")
    job_id = settings().job_id
    run = "-".join(part for part in (job_id, name) if part) if job_id else None
    folder = settings().shared_folder / which
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"MLPLATFORM_SHARED: {folder} cannot be written ({error.strerror}); name a folder that all nodes share."
        ) from error
    if which == "wandb":
        return _wandb(folder, run)
    if which == "comet":
        return _comet(folder, run)
    print(f"TensorBoard writes to {folder}; to see it: tensorboard --logdir {folder}", flush=True)
    return Tracker(folder / run if run else folder, run)


def _wandb(folder: Path, run: str | None) -> Tracker:
    mode = environment().get("WANDB_MODE")
    has_key = mode in (None, "online") and _has_wandb_key()
    if mode == "online" and not has_key:
        raise _no_key("W&B", "WANDB_MODE=online", "WANDB_MODE", "WANDB_API_KEY", "wandb_netrc", "~/.netrc")
    # W&B refuses these letters in an id.
    run_id = re.sub(r"[/\\#?%:]", "-", run) if run else None
    _default(
        WANDB_MODE="online" if has_key else "offline",
        WANDB_DIR=str(folder),
        WANDB_RUN_ID=run_id,
        WANDB_NAME=run,
        WANDB_RESUME="allow",
    )
    # For the second and later runs of this process.
    wandb.reload_settings(environment())
    _say("W&B", run_id, has_key, f"wandb sync {folder}/wandb/offline-run-*-{run_id or '*'}")
    return Tracker(folder, run_id, has_key)


def _has_wandb_key() -> bool:
    variables = environment()
    if variables.get("WANDB_API_KEY") or variables.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    return wandb.has_stored_key(variables.get("WANDB_BASE_URL"))


def _comet(folder: Path, run: str | None) -> Tracker:
    import comet_ml

    has_key = comet.has_key()
    asked = environment().get("COMET_START_ONLINE", "").lower()
    online = asked in ("1", "true", "yes", "on") if asked else has_key
    if online and not has_key:
        raise _no_key(
            "Comet",
            f"COMET_START_ONLINE={asked}",
            "COMET_START_ONLINE",
            "COMET_API_KEY",
            "comet_config",
            "~/.comet.config",
        )
    # Comet wants 32 to 50 letters and digits; this is its own way to make them from a name.
    key = comet_ml.get_experiment_key(run) if run else None
    _default(
        COMET_START_ONLINE=str(online).lower(),
        COMET_OFFLINE_DIRECTORY=str(folder),
        COMET_EXPERIMENT_KEY=key,
        COMET_START_EXPERIMENT_NAME=run,
    )
    _say("Comet", key, online, f"comet upload {folder}/{key or ''}*.zip")
    return Tracker(folder, key, online)


def _default(**variables: str | None) -> None:
    set_default_environment({name: value for name, value in variables.items() if value is not None})


def _say(title: str, run_id: str | None, online: bool, sync: str) -> None:
    what = f"online as {run_id}" if online else f"offline (no key was found, or offline asked for); to sync it: {sync}"
    print(f"{title} is {what}", flush=True)


def _no_key(title: str, asked: str, switch: str, variable: str, secret: str, home_file: str) -> SettingsError:
    return SettingsError(
        f"{asked}, but there is no {title} key on {socket.gethostname()}. Submit the job with {variable} in its "
        f"env_vars, or put the key into secrets/{secret} of the stack ({home_file} without containers), where every "
        f"worker finds it; or leave {switch} out, and the run is kept offline."
    )
