"""Private names of Comet's client, as seen in comet_ml 3.58.8, each with the reason why no public name will do."""

from __future__ import annotations


def has_key() -> bool:
    """Return whether Comet finds an API key in COMET_API_KEY or in its configuration file.

    `comet_ml.config.get_config`: the public `comet_ml.login` would query the server and ask on the terminal.
    """
    from comet_ml.config import get_config  # type: ignore[attr-defined]

    return bool(get_config("comet.api_key"))
