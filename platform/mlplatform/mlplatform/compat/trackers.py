"""Private names of W&B's client 0.31.0 and Comet's 3.58.8, each with the reason why no public name will do."""

from __future__ import annotations

from collections.abc import Mapping


def has_comet_key() -> bool:
    """Return whether Comet finds an API key in COMET_API_KEY or in its configuration file.

    `comet_ml.config.get_config`: the public `comet_ml.login` would query the server and ask on the terminal.
    """
    from comet_ml.config import get_config  # type: ignore[attr-defined]

    return bool(get_config("comet.api_key"))


def has_wandb_key(server: str | None) -> bool:
    """Return whether this process has logged in to a W&B server, or W&B's netrc file has a key for it.

    `wandb.sdk.lib.wbauth`, `session_credentials` and `read_netrc_auth`: the public `wandb.login` would query the
    server, and would fix the mode before it is chosen.

    Args:
        server: address as in WANDB_BASE_URL; None means W&B's own.
    """
    from wandb.sdk.lib import urls, wbauth

    host = server or urls.DEFAULT_BASE_URL
    return bool(wbauth.session_credentials(host=host) or wbauth.read_netrc_auth(host=host))


def reload_wandb_settings(variables: Mapping[str, str]) -> None:
    """Make this process's W&B session read its settings again from environment variables.

    `wandb_setup.singleton` and its `_settings_environ`: W&B reads the environment once per process, with its first
    run, and warns from then on that it ignores what has changed.
    """
    from wandb.sdk import wandb_setup

    session = wandb_setup.singleton()
    if session.settings_if_loaded:
        session.settings.update_from_env_vars(copy := dict(variables))
        # W&B compares the environment with this before it warns.
        session._settings_environ = copy
