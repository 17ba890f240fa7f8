"""Private names of W&B's client, as seen in wandb 0.31.0, each with the reason why no public name will do."""

from __future__ import annotations

from collections.abc import Mapping


def has_stored_key(server: str | None) -> bool:
    """Return whether this process has logged in to a server, or W&B's netrc file has a key for it.

    `wandb.sdk.lib.wbauth`, `session_credentials` and `read_netrc_auth`: the public `wandb.login` would query the
    server, and would fix the mode before it is chosen.

    Args:
        server: address as in WANDB_BASE_URL; None means W&B's own.
    """
    from wandb.sdk.lib import urls, wbauth

    host = server or urls.DEFAULT_BASE_URL
    return bool(wbauth.session_credentials(host=host) or wbauth.read_netrc_auth(host=host))


def reload_settings(variables: Mapping[str, str]) -> None:
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
