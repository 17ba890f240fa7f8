"""Certificates of the TLS entrance: those that it serves, and that of its authority."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any

from mlplatform.settings.stack import StackSettings
from mlplatform.stack import entrance
from mlplatform.stack.checks.finding import Finding, Place

_AUTHORITY_DAYS = 30

_LEAST_SHARE = 1 / 6
"""Share of a certificate's lifetime; Caddy renews it when a third is left."""

_EXPIRED = 10
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED."""

_WHY = "Browsers, MLflow and S3 clients refuse the connection."


def of_entrance(place: Place) -> Iterator[Finding]:
    """Yield certificates that clients refuse or that end soon; none without the entrance, or while it does not run."""
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
    for authority in own.get_ca_certs():
        yield from of_authority(authority, time.time(), f"{settings.prefix}proxy")
    for finding in _served(own, settings, settings.ray_port, settings.bind_address):
        yield Finding(finding.problem, finding.why, finding.fix, repair=copy)


def of_authority(certificate: Mapping[str, Any], now: float, container: str) -> Iterator[Finding]:
    """Yield the authority's certificate if it ends within a month."""
    days = (ssl.cert_time_to_seconds(certificate["notAfter"]) - now) / 86400
    if days < _AUTHORITY_DAYS:
        remove = f"docker exec {container} rm -r /data/caddy/pki/authorities/local && docker restart {container}"
        yield Finding(
            f"The certificate of the entrance's authority ends in {days:.0f} days.",
            f"{_WHY} A new authority must be trusted on each client again.",
            f"{remove} && make status",
        )


def of_server(certificate: Mapping[str, Any], now: float, container: str) -> Iterator[Finding]:
    """Yield a served certificate that should have been renewed."""
    begins, ends = (ssl.cert_time_to_seconds(certificate[name]) for name in ("notBefore", "notAfter"))
    if ends - now < _LEAST_SHARE * (ends - begins):
        yield Finding(
            f"The certificate of the entrance ends in {(ends - now) / 3600:.1f} hours and has not been renewed.",
            _WHY,
            f"docker logs --tail 100 {container}",
        )


def _served(context: ssl.SSLContext, settings: StackSettings, port: int, name: str) -> Iterator[Finding]:
    container = f"{settings.prefix}proxy"
    try:
        with (
            socket.create_connection((settings.bind_address, port), timeout=5) as raw,
            context.wrap_socket(raw, server_hostname=name) as connection,
        ):
            certificate = connection.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        fix = f"docker restart {container}" if error.verify_code == _EXPIRED else "make status"
        yield Finding(
            f"The certificate at {settings.bind_address}:{port} is refused ({error.verify_message}).", _WHY, fix
        )
    except OSError:
        return  # `health` reports a service of ours that failed
    else:
        yield from of_server(certificate, time.time(), container)
