"""Trackers other than MLflow: their folder, their run's id, and online mode if a key is found."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlplatform.compat import trackers
from mlplatform.errors import SettingsError
from mlplatform.settings.accounts import OtherTrackers
from mlplatform.settings.environment import environment, set_default_environment
from mlplatform.settings.job import settings


@dataclass(frozen=True)
class Tracker:
    """Place and identity of this job's run in a tracker.

    Attributes:
        folder: folder on the storage that all nodes share.
        id: id of the run, derived from the job's, so the same after a restart; None outside of jobs, where the tracker
            generates one.
        online: True if it sends to its server, False if it only writes files.
    """

    folder: Path
    id: str | None
    online: bool = False


def tracker(which: Literal["wandb", "comet", "tensorboard"], name: str | None = None) -> Tracker:
    """Prepare this process for a tracker, and print in one line where it will log.

    Afterwards `wandb.init()`, `comet_ml.start()` and Lightning's loggers need no address, key, mode, folder or id: they
    find them in the process's environment. Variables that the job itself has set are left as they are. A key is read
    from there (WANDB_API_KEY, COMET_API_KEY) or from the client's own file, which the platform mounts on every node.
    Without a key, the tracker writes files. Call this where the run is opened, in rank 0 of a training.

    Args:
        which: wandb (Weights & Biases), comet or tensorboard.
        name: name of this run within the job; needed if a job has several.

    Raises:
        SettingsError: online is requested and there is no key, or the folder cannot be written.
    """
    # Both try to report their own errors to their vendors; Comet does so from its import on.
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
    print(f"TensorBoard writes to {folder}; show it with: tensorboard --logdir {folder}", flush=True)
    return Tracker(folder / run if run else folder, run)


def _wandb(folder: Path, run: str | None) -> Tracker:
    own = OtherTrackers.load()
    mode, has_own = own.wandb_mode, bool(own.wandb_api_key or own.wandb_identity_token)
    has_key = mode in (None, "online") and (has_own or trackers.has_wandb_key(own.wandb_server))
    if mode == "online" and not has_key:
        raise _no_key("W&B", "WANDB_MODE=online", "WANDB_MODE", "WANDB_API_KEY", "wandb_netrc", "~/.netrc")
    # W&B rejects these characters in an id.
    run_id = re.sub(r"[/\\#?%:]", "-", run) if run else None
    _default(
        WANDB_MODE="online" if has_key else "offline",
        WANDB_DIR=str(folder),
        WANDB_RUN_ID=run_id,
        WANDB_NAME=run,
        WANDB_RESUME="allow",
    )
    # For the second and later runs of this process.
    trackers.reload_wandb_settings(environment())
    _print_state("W&B", run_id, has_key, f"wandb sync {folder}/wandb/offline-run-*-{run_id or '*'}")
    return Tracker(folder, run_id, has_key)


def _comet(folder: Path, run: str | None) -> Tracker:
    import comet_ml

    has_key = trackers.has_comet_key()
    requested = OtherTrackers.load().comet_online
    online = has_key if requested is None else requested
    if online and not has_key:
        raise _no_key(
            "Comet",
            "COMET_START_ONLINE=true",
            "COMET_START_ONLINE",
            "COMET_API_KEY",
            "comet_config",
            "~/.comet.config",
        )
    # Comet requires 32 to 50 letters and digits; this is its own function to derive them from a name.
    key = comet_ml.get_experiment_key(run) if run else None
    _default(
        COMET_START_ONLINE=str(online).lower(),
        COMET_OFFLINE_DIRECTORY=str(folder),
        COMET_EXPERIMENT_KEY=key,
        COMET_START_EXPERIMENT_NAME=run,
    )
    _print_state("Comet", key, online, f"comet upload {folder}/{key or ''}*.zip")
    return Tracker(folder, key, online)


def _default(**variables: str | None) -> None:
    set_default_environment({name: value for name, value in variables.items() if value is not None})


def _print_state(title: str, run_id: str | None, online: bool, sync: str) -> None:
    state = f"online as {run_id}" if online else f"offline (no key was found, or offline is set); to sync it: {sync}"
    print(f"{title} is {state}", flush=True)


def _no_key(title: str, setting: str, switch: str, variable: str, secret: str, home_file: str) -> SettingsError:
    return SettingsError(
        f"{setting}, but there is no {title} key on {socket.gethostname()}. Submit the job with {variable} in its "
        f"env_vars, or put the key into secrets/{secret} of the stack ({home_file} without containers), where every "
        f"worker finds it; or leave {switch} out, and the run is kept offline."
    )
