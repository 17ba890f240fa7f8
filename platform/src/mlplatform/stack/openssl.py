"""Keys and certificates, made by the `openssl` command that every host has."""

from __future__ import annotations

import base64
import hashlib
import shutil
import ssl
import subprocess
from pathlib import Path

from mlplatform.errors import HostError

_KEY_BYTES = 32
"""An X25519 key: the last bytes of its DER encoding (RFC 8410)."""


def certificate(folder: Path, days: int = 1) -> tuple[Path, str]:
    """Write a self-signed certificate with its key; return the file and its SHA-256 fingerprint."""
    key, cert, both = folder / "key.pem", folder / "certificate.pem", folder / "both.pem"
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    files = ("-keyout", str(key), "-out", str(cert))
    _openssl("req", "-x509", *kind, *files, "-days", str(days), "-subj", "/CN=mlplatform")
    both.touch(mode=0o600)
    both.write_text(key.read_text() + cert.read_text())
    return both, fingerprint(ssl.PEM_cert_to_DER_cert(cert.read_text()))


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 digest of a certificate in DER encoding."""
    return hashlib.sha256(certificate).hexdigest()


def wireguard_key() -> tuple[str, str]:
    """Return a new private and public key in WireGuard's notation."""
    private = _openssl("genpkey", "-algorithm", "X25519", "-outform", "DER")
    public = _openssl("pkey", "-inform", "DER", "-pubout", "-outform", "DER", data=private)
    return _base64(private), _base64(public)


def _base64(der: bytes) -> str:
    return base64.b64encode(der[-_KEY_BYTES:]).decode()


def _openssl(*arguments: str, data: bytes | None = None) -> bytes:
    if not shutil.which("openssl"):
        raise HostError("The command `openssl` is missing: install the package `openssl`.")
    result = subprocess.run(["openssl", *arguments], input=data, capture_output=True, check=False)
    if result.returncode:
        raise HostError(f"`openssl {arguments[0]}` failed: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout
