"""A package index on this machine, with wheels that contain little but their metadata."""

from __future__ import annotations

import functools
import hashlib
import http.server
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def wheel(
    index: Path, name: str, version: str, *needs: str, tag: str = "py3-none-any", files: Mapping[str, str] | None = None
) -> str:
    """Add a package with these files to the folder of an index; return the SHA-256 of its wheel."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    folder = index / name.replace("_", "-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace('-', '_')}-{version}-{tag}.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (files or {}).items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/METADATA", metadata + "".join(f"Requires-Dist: {need}\n" for need in needs))
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*archive.namelist(), f"{info}/RECORD"]))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def served(index: Path) -> Iterator[str]:
    """Serve the folder of an index; yields its address, which ends with a slash."""
    index.mkdir(exist_ok=True)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            """Keep the tests' output clean."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=index))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
