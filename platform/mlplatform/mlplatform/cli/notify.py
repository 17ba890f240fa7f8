"""`mlplatform notify`: messages about one's own jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from mlplatform.cli.output import Json, print_result


def notify(
    address: Annotated[
        str | None, typer.Argument(help="Mail address, or address of a webhook; without it, the present one is shown.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Send no more messages.")] = False,
    as_json: Json = False,
) -> None:
    """Have a message sent by mail or to a webhook when a job of yours ends, is lost, or leaves for another one.

    To a webhook, the message is JSON; its field `text`, which chat programs show, says what has happened. A first
    message is sent at once.
    """
    from mlplatform.api.people import MessageAddress
    from mlplatform.client.connection import Connection
    from mlplatform.errors import SettingsError

    if address and off:
        raise SettingsError("Choose one of an address and --off.")
    with Connection() as link:
        if address or off:
            is_mail = address is not None and "@" in address and ":" not in address
            link.call("PUT", "/platform/webhook", json={"url": f"mailto:{address}" if is_mail else address})
        found = link.read(MessageAddress, "GET", "/platform/webhook")
    to = f"Messages about your jobs are sent to {found.url.removeprefix('mailto:')}." if found.url else ""
    print_result(found, as_json, to or "No messages about your jobs are sent.")
