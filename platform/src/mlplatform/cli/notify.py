"""`mlplatform notify`: messages about one's own jobs."""

from __future__ import annotations

from typing import Annotated

import typer


def notify(
    address: Annotated[
        str | None, typer.Argument(help="Mail address, or address of a webhook; without it, the present one is shown.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Send no more messages.")] = False,
) -> None:
    """Have a message sent by mail or to a webhook when a job of yours ends, is lost, or leaves for another one.

    To a webhook, the message is JSON; its field `text`, which chat programs show, says what has happened. A first
    message is sent at once.
    """
    from mlplatform.client.connection import connected
    from mlplatform.client.people import set_webhook, webhook
    from mlplatform.errors import SettingsError
    from mlplatform.settings.job import settings

    if address and off:
        raise SettingsError("Choose one of an address and --off.")
    with connected(settings()) as link:
        if address or off:
            set_webhook(link, address)
        present = webhook(link)
    present = present and present.removeprefix("mailto:")
    print(f"Messages about your jobs are sent to {present}." if present else "No messages about your jobs are sent.")
