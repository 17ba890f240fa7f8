"""A second host on this machine: an engine of its own in a network namespace, joined by a link that can be cut.

Nothing of it is visible to the first engine: it has its own folders, socket and interfaces.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from host import Stack, run, wait_for

from mlplatform.settings.environment import environment

NAMESPACE = "mlplatform-second"

FIRST, SECOND = "10.213.90.1", "10.213.90.2"
"""Addresses of both hosts on the link between them."""

CPUS = 12
"""More than the first host's workers declare, so that an entry point can ask for what only the second host has."""

_OUTER = "mlp-second"

_SIZES = {"WORKER_MEMORY": "5g", "WORKER_SHM": "2g", "WORKER_OBJECT_STORE": "300000000", "WARM_START": "0"}
"""A part of this machine's memory, instead of the settings that `make join` chooses."""

_BRIDGE = "10.213.91.1/24"

_ALL_PROTOCOLS, _IPV4, _ARP, _IPV6 = 0x0003, 0x0800, 0x0806, 0x86DD
_HOP_BY_HOP = 0


class SecondHost:
    """A host with an engine and a checkout, to join a stack.

    `source` is the data folder of the first engine; `folder` has this engine's data, its socket and the checkout; it
    has the `images` with these names.
    """

    def __init__(self, stack: Stack, source: Path, folder: Path, *images: str) -> None:
        self.stack, self.source, self.folder, self.images = stack, source, folder, images
        self.checkout = folder / "checkout"
        self._engine: subprocess.Popen[bytes] | None = None

    # --- Network ---

    def plug_in(self) -> None:
        """Create the network namespace and the link."""
        run("ip", "netns", "add", NAMESPACE)
        run("ip", "link", "add", _OUTER, "type", "veth", "peer", "name", "eth0", "netns", NAMESPACE)
        run("ip", "address", "add", f"{FIRST}/30", "dev", _OUTER)
        run("ip", "link", "set", _OUTER, "up")
        run("ip", "-n", NAMESPACE, "address", "add", f"{SECOND}/30", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", NAMESPACE, "link", "set", device, "up")

    def cut(self) -> None:
        run("ip", "link", "set", _OUTER, "down")

    def restore(self) -> None:
        run("ip", "link", "set", _OUTER, "up")

    @contextmanager
    def watched(self) -> Iterator[Counter[str]]:
        """Count the packets on the link by their kind."""
        counted: Counter[str] = Counter()
        port, ended = self.stack.settings.hub_port, threading.Event()

        def count() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    packet, address = link.recvfrom(65536)
                    counted[kind_of(address[1], packet, port)] += 1

        # Without the Ethernet header, whose protocol is in the address.
        with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL_PROTOCOLS)) as link:
            link.bind((_OUTER, _ALL_PROTOCOLS))
            link.settimeout(0.5)
            counter = threading.Thread(target=count)
            counter.start()
            try:
                yield counted
            finally:
                ended.set()
                counter.join()

    # --- Engine ---

    @property
    def socket(self) -> str:
        return f"unix://{self.folder}/docker.sock"

    def start_engine(self) -> None:
        """Start the engine, which starts its containers again, as when a host boots."""
        mount_images(self.source, self.folder / "data", *self.images)
        self._engine = subprocess.Popen(
            [
                *("nsenter", f"--net=/run/netns/{NAMESPACE}", "dockerd", "--host", self.socket),
                *("--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "exec")),
                *("--pidfile", str(self.folder / "docker.pid"), "--bip", _BRIDGE),
            ],
            stdout=(self.folder / "engine.log").open("ab"),
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_for(lambda: self.docker("info", check=False).returncode == 0, "the second engine", 60)

    def stop_engine(self) -> None:
        """Stop the engine, which stops its containers, as when a host shuts down."""
        if self._engine:
            self._engine.terminate()
            self._engine.wait(120)
            self._engine = None

    def docker(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run("docker", "--host", self.socket, *arguments, check=check)

    # --- Verbs ---

    def check_out(self) -> None:
        """Copy the stack's checkout, without its settings and secrets."""
        left_out = shutil.ignore_patterns(".env", ".venv", ".git", "__pycache__", "*.generated.yaml")

        def ignored(folder: str, names: list[str]) -> set[str]:
            own = {"secrets"} if Path(folder) == self.stack.root else set()
            return left_out(folder, names) | own

        shutil.copytree(self.stack.root, self.checkout, ignore=ignored, symlinks=True)
        # Made beforehand, because the namespace reaches no package index.
        (self.checkout / ".venv").symlink_to(self.stack.root / ".venv")

    def make(self, *arguments: str, check: bool = True, **options: str) -> subprocess.CompletedProcess[str]:
        """Run a verb on this host."""
        command = ("nsenter", f"--net=/run/netns/{NAMESPACE}", "make", *arguments)
        variables = {**environment(), "DOCKER_HOST": self.socket}
        return run(*command, check=check, cwd=self.checkout, env=variables, **options)

    def join(self) -> None:
        """Join with the file that the first host writes."""
        file = "join-second.json"
        self.stack.make("host-token", "NAME=second", f"ADDRESS={FIRST}")
        shutil.move(self.stack.root / file, self.checkout / file)
        self.make("join", f"FROM={file}")
        assert not (self.checkout / file).exists(), "the secrets of a worker are still in the file"
        settings = {"WORKER_CPUS": str(CPUS), "WORKER_GPUS": "1", **_SIZES}
        with (self.checkout / "joined.env").open("a") as env:
            env.writelines(f"{setting}={value}\n" for setting, value in settings.items())
        self.make("join")

    # --- Removal ---

    def remove(self) -> None:
        """Remove containers, engine, link and files."""
        if self._engine:
            ids = self.docker("ps", "--all", "--quiet", check=False).stdout.split()
            if ids:
                self.docker("rm", "--force", "--volumes", *ids, check=False)
        self.stop_engine()
        for mount in _mounts(self.folder):
            # Not lazily: the files below must be out of reach of what follows.
            run("umount", mount)
        with suppress(AssertionError):
            for pid in run("ip", "netns", "pids", NAMESPACE).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
        run("ip", "link", "delete", _OUTER, check=False)
        run("ip", "netns", "delete", NAMESPACE, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def kind_of(protocol: int, packet: bytes, hub_port: int) -> str:
    """Kind of a packet: neighbour discovery, WireGuard, or the numbers that tell what else it is.

    `protocol` is that of the Ethernet header, which the packet lacks; `hub_port` the UDP port of the first host's hub.
    """
    if protocol == _ARP or (protocol == _IPV6 and packet[6] in (_HOP_BY_HOP, socket.IPPROTO_ICMPV6)):
        return "neighbour discovery"
    if protocol != _IPV4:
        return f"Ethernet protocol {protocol:#06x}"
    udp = packet[4 * (packet[0] & 15) :]
    ports = int.from_bytes(udp[:2], "big"), int.from_bytes(udp[2:4], "big")
    # https://www.wireguard.com/protocol: a message's type is 1 to 4, and three zeros follow.
    if packet[9] == socket.IPPROTO_UDP and hub_port in ports and udp[8] in range(1, 5) and not any(udp[9:12]):
        return "WireGuard"
    return f"IP protocol {packet[9]}, ports {ports}"


def mount_images(source: Path, target: Path, *names: str) -> None:
    """Give an engine that does not run images of another one, by their tags; their layers are mounted read-only.

    `source` and `target` are the engines' data folders. Saving and loading 7.5 GB would take minutes. An engine that
    stops removes all mounts below its folder.
    """
    layers = target / "overlay2"
    layers.mkdir(parents=True, exist_ok=True)
    # The engine would mount both folders on themselves, without the mounts below, unless they are mount points already.
    run("mount", "--bind", "--make-shared", str(target), str(target))
    run("mount", "--bind", str(layers), str(layers))
    database = Path("image/overlay2")
    repositories: dict[str, dict[str, str]] = {}
    for name in names:
        image = json.loads(run("docker", "image", "inspect", name).stdout)[0]
        repositories[name.partition(":")[0]] = {name: image["Id"]}
        _copy(source, target, database / "imagedb/content/sha256" / image["Id"].removeprefix("sha256:"))
        for chain in _chains(image["RootFS"]["Layers"]):
            layer = database / "layerdb/sha256" / chain
            _copy(source, target, layer)
            _mount_layer(source, target, Path("overlay2") / (source / layer / "cache-id").read_text())
    if not (target / database / "repositories.json").exists():
        (target / database).mkdir(parents=True, exist_ok=True)
        (target / database / "repositories.json").write_text(json.dumps({"Repositories": repositories}))


def _mount_layer(source: Path, target: Path, layer: Path) -> None:
    if os.path.ismount(target / layer / "diff"):
        return
    # Beside a layer's files, the engine writes markers.
    for folder in ("diff", "work"):
        (target / layer / folder).mkdir(parents=True, exist_ok=True)
    run("mount", "--bind", "--options", "ro", str(source / layer / "diff"), str(target / layer / "diff"))
    for file in ("link", "lower"):
        if (source / layer / file).exists():
            _copy(source, target, layer / file)
    _copy(source, target, Path("overlay2/l") / (source / layer / "link").read_text())


def _copy(source: Path, target: Path, path: Path) -> None:
    if not os.path.lexists(target / path):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        run("cp", "--archive", str(source / path), str(target / path))


def _chains(layers: list[str]) -> Iterator[str]:
    """Ids under which an engine keeps layers: each is the digest of its own and of those below it."""
    chain = ""
    for layer in layers:
        chain = f"sha256:{hashlib.sha256(f'{chain} {layer}'.encode()).hexdigest()}" if chain else layer
        yield chain.removeprefix("sha256:")


def _mounts(folder: Path) -> list[str]:
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [path for path in reversed(mounted) if path.startswith(f"{folder}/")]


@contextmanager
def second_host(stack: Stack, *present: str) -> Iterator[SecondHost]:
    """A second host with a running engine, which may join a stack; removed with all that it holds.

    It has our images of the kinds that are `present`, and would build the others when it joins.
    """
    root = Path(run("docker", "info", "--format", "{{.DockerRootDir}}").stdout.strip())
    images = [f"mlplatform-{kind}:{stack.settings.mlplatform_version}" for kind in present]
    host = SecondHost(stack, root, root.with_name("mlplatform-second"), *images)
    # What a killed run has left.
    host.remove()
    host.folder.mkdir()
    try:
        host.plug_in()
        host.start_engine()
        host.check_out()
        yield host
    finally:
        host.remove()
