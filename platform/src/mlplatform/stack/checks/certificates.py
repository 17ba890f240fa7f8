"""Certificates that the TLS entrance serves, and the copy of its authority's."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

from mlplatform.settings.stack import StackSettings
from mlplatform.stack import entrance
from mlplatform.stack.checks.finding import Finding, Place

_EXPIRED = 10
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED."""


def of_entrance(place: Place) -> Iterator[Finding]:
    """Yield certificates that clients refuse; none without the entrance, or while it does not run."""
    settings = place.settings
    if not settings.has_proxy:
        return

    def copy() -> None:
        entrance.write_certificates(place.root, settings)

    file = place.root / entrance.CERTIFICATE
    if not settings.acme_email and not (file.is_file() and (place.root / entrance.BUNDLE).is_file()):
        yield Finding(
            f"{file} or {entrance.BUNDLE} is missing.",
            "Clients on this host do not accept the certificates of the entrance.",
            "make status",
            repair=copy,
        )
        return
    if settings.acme_email:
        public = ssl.create_default_context()
        yield from _served(public, settings, settings.https_port, f"ray.{settings.domain}")
        return
    own = ssl.create_default_context(cafile=file)
    for finding in _served(own, settings, settings.ray_port, settings.bind_address):
        yield Finding(finding.problem, finding.why, finding.fix, repair=copy)


def _served(context: ssl.SSLContext, settings: StackSettings, port: int, name: str) -> Iterator[Finding]:
    try:
        with (
            socket.create_connection((settings.bind_address, port), timeout=5) as raw,
            context.wrap_socket(raw, server_hostname=name),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        fix = f"docker restart {settings.prefix}proxy" if error.verify_code == _EXPIRED else "make status"
        yield Finding(
            f"The certificate at {settings.bind_address}:{port} is refused ({error.verify_message}).",
            "Browsers, MLflow and S3 clients refuse the connection.",
            fix,
        )
    except OSError:
        return  # `health` reports a service of ours that failed
