"""A host that joins, up to the start of its worker: programs stand in for Docker and for the stack's hub."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlplatform.errors import HostError
from mlplatform.settings.stack import StackSettings
from mlplatform.stack import env, hosts, joining, sizing
from mlplatform.stack.host import Host
from mlplatform.stack.invitation import UnreadyError

CHECKOUT = Path(__file__).parents[3]
GPUS = Host(memory=64 * sizing.GIB, cpus=32, accelerator="cuda", gpus=4)
AMD = Host(memory=64 * sizing.GIB, cpus=32, accelerator="rocm", gpus=4, render_gid="992")

# An engine: ids of images differ between engines, their layers do not. The hub assigns addresses.
DOCKER = """\
#!/bin/sh
echo "$*" >>"$CALLS"
case "$ENGINE $*" in "containerd "*"${LACKS:-none}"*) exit 1 ;; esac
case "$*" in
  *"{{.Id}}"*) echo "sha256:$ENGINE" ;;
  *"{{json .RootFS.Layers}}"*) echo "$LAYERS" ;;
  *"services.hub add"*) echo '{"addresses": "10.213.76.136/29", "hub_key": "key"}' ;;
esac
"""


class Two:
    """A stack and a host that joins it, each with an engine of its own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        (folder / "bin").mkdir()
        (folder / "bin/docker").write_text(DOCKER)
        (folder / "bin/docker").chmod(0o755)
        patch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
        self.calls = folder / "calls"
        patch.setenv("CALLS", str(self.calls))
        patch.delenv("TORCH_INDEX_URL", raising=False)
        self.stack, self.host = folder / "stack", folder / "host"
        for root in (self.stack, self.host):
            (root / "platform").mkdir(parents=True)
            shutil.copy(CHECKOUT / ".env.example", root)
            shutil.copy(CHECKOUT / "platform/pyproject.toml", root / "platform")
        env.write_env(self.stack, GPUS)
        patch.setattr(joining, "start", lambda root: None)
        patch.setattr(joining, "_build_missing", lambda root, version: None)
        self.needed: list[str] = []

    def engine(self, name: str, *layers: str) -> None:
        """Let Docker be another engine, whose images have these layers."""
        self._patch.setenv("ENGINE", name)
        self._patch.setenv("LAYERS", json.dumps(layers))

    def join(self, *, host: Host = GPUS, server: str = "192.0.2.1:51820", layers: str = "a") -> str:
        """Join over an answer of the stack, and return what was written."""

        def request_join(server: str, fingerprint: str, code: str, request: dict[str, Any], receive: Any) -> None:
            self.engine("overlay2", "a")
            reply, self.needed = hosts.admit(self.stack, StackSettings.load(self.stack / ".env"), request)
            self.engine("containerd", layers)
            with (self.host / "empty").open("w+b") as archive:
                receive(json.loads(json.dumps(reply)), archive)

        self._patch.setattr(joining, "request_join", request_join)
        self.engine("containerd", layers)
        joining.join(self.host, host, server, "", "", "lab1")
        return (self.host / joining.FILE).read_text()


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Two:
    return Two(tmp_path, monkeypatch)


def test_engines_that_store_images_differently_agree(two: Two) -> None:
    assert "NODE_NAME=ray-worker-lab1" in two.join()
    assert two.needed == [], "images that the host has would be sent"


def test_image_with_other_layers_is_sent_and_rejected(two: Two) -> None:
    with pytest.raises(HostError, match=r"The images .* differ from the stack's: run `docker image rm` and join again"):
        two.join(layers="b")
    assert [image.partition(":")[0] for image in two.needed] == [f"mlplatform-{name}" for name in hosts.IMAGES]


def test_name_of_stack_is_resolved_for_link(two: Two) -> None:
    assert f"HUB_ENDPOINT=127.0.0.1:{StackSettings.load(two.stack / '.env').hub_port}\n" in two.join(
        server="localhost:1"
    )


def test_unknown_name_of_stack_is_rejected_before_code_is_sent(two: Two) -> None:
    with pytest.raises(HostError, match=r"HOST=stack\.invalid:51820 has no IPv4 address \(.*\): set HOST="):
        joining.join(two.host, GPUS, "stack.invalid:51820", "", "", "lab1")


def test_amd_host_needs_index_of_torch_before_it_is_registered(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LACKS", "mlplatform-ray")
    with pytest.raises(UnreadyError, match=r"repeat `make join` with TORCH_INDEX_URL= .* The code is still valid"):
        two.join(host=AMD)
    assert "services.hub add" not in two.calls.read_text()
    monkeypatch.setenv("TORCH_INDEX_URL", "https://rocm.example.org")
    assert "TORCH_INDEX_URL=https://rocm.example.org\n" in two.join(host=AMD)
    assert "services.hub add" in two.calls.read_text()


def test_amd_host_of_amd_stack_needs_no_index(two: Two) -> None:
    with (two.stack / ".env").open("a") as file:
        file.write("ACCELERATOR=rocm\n")
    assert "TORCH_INDEX_URL" not in two.join(host=AMD)
