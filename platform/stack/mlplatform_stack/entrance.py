"""The TLS entrance: its addresses, and the certificate of its authority."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path

import certifi

from mlplatform.errors import HostError
from mlplatform.files import atomic
from mlplatform_stack.docker import answer, compose
from mlplatform_stack.services import Page
from mlplatform_stack.settings import LOOPBACK, StackSettings

CERTIFICATE = "proxy-ca.pem"
"""File in the checkout with the certificate of the entrance's authority."""

BUNDLE = "proxy-ca-bundle.pem"
"""File with that certificate and those of the public authorities, for clients that read one file only."""

_IN_CONTAINER = "/data/caddy/pki/authorities/local/root.crt"


def origin(settings: StackSettings, name: str = "") -> str:
    """Return scheme and host of the stack's addresses, to which each adds its port.

    Args:
        name: name of a page, so that a browser sends the cookies of one page to no other: they know no ports. Browsers
            resolve names below `localhost` themselves. Programs do not, and use addresses without a name.
    """
    if not settings.has_proxy:
        return f"http://{name}.localhost" if name else f"http://{LOOPBACK}"
    return f"https://{f'{name}.' if name and settings.domain else ''}{settings.domain or settings.bind_address}"


def variables(settings: StackSettings) -> dict[str, str]:
    """Return the variables with which the containers print addresses of the entrance; none without it."""
    if not settings.has_proxy:
        return {}
    pages = {f"{name.upper()}_ORIGIN": origin(settings, name) for name in ("mlflow", "prometheus")}
    return {"PAGES_ORIGIN": origin(settings), **pages}


def sites(pages: Iterable[Page]) -> str:
    """Return the sites of pages for the Caddyfile, which has a snippet for each kind of site.

    Each page has its port at BIND_ADDRESS and DOMAIN, and names of its own, also with that port, so that pages share no
    cookies; some have names below one.
    """
    return "\n".join(site for page in pages for site in _sites(page))


def _sites(page: Page) -> Iterator[str]:
    port, names = page.inside, page.facts["names"]
    to_service = f"\timport {page.facts.get('site', 'page')} {page.service}:{port}\n"
    yield f"https://{{$BIND_ADDRESS}}:{port} {{\n\ttls internal\n{to_service}}}\n"
    hosts = [f"{{$DOMAIN}}:{port}", f"{names[0]}.{{$DOMAIN}}:{port}", *(f"{name}.{{$DOMAIN}}" for name in names)]
    addresses = ", ".join(f"https://{host}" for host in hosts)
    yield f"{addresses} {{\n\timport certificate{{$ISSUER}}\n{to_service}}}\n"
    if below := page.facts.get("below"):
        # ACME gives certificates for all names below one to those only who change its DNS records.
        addresses = ", ".join(f"https://*.{below}.{{$DOMAIN}}{suffix}" for suffix in (f":{port}", ""))
        yield f"{addresses} {{\n\ttls internal\n{to_service}}}\n"


def write_certificates(root: Path) -> str:
    """Write the authority's certificate and the bundle to the checkout; return its SHA-256 fingerprint.

    Raises:
        HostError: the entrance does not run.
    """
    own = answer(*compose(root, "--profile", "*", "exec", "--no-TTY", "proxy", "cat", _IN_CONTAINER))
    if not own:
        raise HostError("The TLS entrance, service proxy, does not run: start it with `make up`.")
    for name, text in ((CERTIFICATE, own), (BUNDLE, Path(certifi.where()).read_text() + own)):
        atomic.write(root / name, f"{text}\n")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(own)).hexdigest()


def trust(root: Path, settings: StackSettings) -> dict[str, str]:
    """Return the variables with which clients accept the entrance's certificates; none if they do anyway.

    Raises:
        HostError: the checkout has no copy of the certificate.
    """
    if not settings.has_proxy or settings.acme_email:
        return {}
    bundle = root / BUNDLE
    if not bundle.is_file():
        raise HostError(f"There is no {bundle}: run `make status` on the stack's host, and copy it if this is another.")
    return dict.fromkeys(("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), str(bundle))


def trust_lines(root: Path, settings: StackSettings) -> list[str]:
    """Write the certificates, and return what a person needs in order to trust them."""
    if not settings.has_proxy or settings.acme_email:
        return []
    found = write_certificates(root)
    copy = "/usr/local/share/ca-certificates/mlplatform.crt && sudo update-ca-certificates"
    return [
        f"Certificates are from this stack's own authority, SHA-256 fingerprint {found}.",
        f"To trust it (Debian): sudo cp {root / CERTIFICATE} {copy}",
    ]
