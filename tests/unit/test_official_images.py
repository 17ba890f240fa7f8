"""Facts about the images of others: what services rely on is compared with them, and no pin has a known hole."""

import copy
import re
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import contract
import facts
import pytest

from mlplatform_stack import image_lock

CHECKOUT = Path(__file__).parents[2]
IMAGES, BUILT = facts.load()

FACTS: dict[str, Any] = {
    "image": "checked.example/store",
    **{"tag": "v2.4.1", "user": "store", "any_user": "writes /data only", "group": "0"},
    "entrypoint": ["/bin/store"],
    "volumes": ["/data"],
    "folders": [
        {"path": "/data", "mode": "755"},
        {"path": "/cache", "mode": "1777"},
        {"path": "/run/own", "mode": "755"},
    ],
    **{"programs": ["sh", "wget", "grep", "store"], "flags": ["path"]},
    **{"variables": ["STORE_KEY_FILE"], "capabilities": ["SYS_NICE"]},
}
SERVICE: dict[str, Any] = {
    "image": "checked.example/store:v2.4.1@sha256:0123",
    "user": "27100:0",
    "read_only": True,
    "command": ["serve", "--path=/data"],
    "environment": {"STORE_KEY_FILE": "/run/secrets/key", "NO_PROXY": "store"},
    "healthcheck": {"test": ["CMD-SHELL", "wget --quiet --spider http://127.0.0.1:1/ 2>&1 | grep -q 401"]},
    "tmpfs": ["/cache:size=1m"],
    "volumes": [
        {"type": "volume", "source": "store", "target": "/data"},
        {"type": "volume", "source": "own", "target": "/run/own"},
        {"type": "bind", "source": "/checkout/docker", "target": "/etc/store", "read_only": True},
    ],
    "cap_drop": ["ALL"],
    "cap_add": ["SYS_NICE"],
}


def faults(service: dict[str, Any] = SERVICE, **changes: Any) -> list[str]:
    return list(contract.faults({**service, **changes}, FACTS, {"store", "own"}))


def test_service_within_the_facts_has_no_fault() -> None:
    assert faults() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": "checked.example/store:v2.5.0"}, "read the sources of the new tag"),
        ({"image": "mirror.example/store:v2.4.1"}, "the facts are of checked.example/store:v2.4.1"),
        ({"user": "27100:27100"}, "group 0 only"),
        ({"healthcheck": {"test": ["CMD", "curl", "--fail", "http://127.0.0.1:1/"]}}, "runs curl"),
        ({"healthcheck": {"test": ["CMD-SHELL", "bash -c 'exec 3<>/dev/tcp/127.0.0.1/1'"]}}, "runs bash"),
        ({"healthcheck": {"test": ["CMD-SHELL", "wget -q x && jq . answer"]}}, "runs jq"),
        ({"entrypoint": ["/bin/tini", "store"]}, "runs /bin/tini"),
        ({"command": ["serve", "--path=/data", "--compact=yes"]}, "--compact"),
        ({"environment": {"STORE_KEY": "x"}}, "STORE_KEY, which the program does not read"),
        ({"tmpfs": []}, "/cache, which the program writes, is not mounted"),
        ({"tmpfs": ["/cache", "/srv"]}, "the tmpfs /srv"),
        ({"cap_add": []}, "adds the capabilities []"),
        ({"cap_add": ["SYS_NICE", "SYS_ADMIN"]}, "'SYS_ADMIN'"),
        ({"cap_drop": []}, "keeps capabilities"),
    ],
)
def test_each_reliance_without_a_fact_is_a_fault(changes: dict[str, Any], words: str) -> None:
    (fault,) = faults(**changes)
    assert words in fault


@pytest.mark.parametrize(
    ("number", "change", "words"),
    [
        (0, {"target": "/lib/data"}, "a volume without a name"),
        (0, {"source": "other"}, "nobody gives the volume other to its user"),
        (1, {"type": "tmpfs"}, ""),
        (2, {"read_only": False}, "a folder of the host and writable"),
    ],
)
def test_each_mount_without_a_fact_is_a_fault(number: int, change: dict[str, Any], words: str) -> None:
    service = copy.deepcopy(SERVICE)
    service["volumes"][number].update(change)
    found = faults(service)
    assert any(words in fault for fault in found) if words else not found


def test_tmpfs_needs_a_folder_that_its_user_may_write() -> None:
    (fault,) = faults({**SERVICE, "tmpfs": ["/cache", "/run/own"], "volumes": SERVICE["volumes"][::2]})
    assert "/run/own has the mode 755" in fault


def test_image_for_one_user_is_run_as_that_user() -> None:
    only = {key: value for key, value in FACTS.items() if key not in ("any_user", "group")}
    (fault,) = contract.faults(SERVICE, only, {"store", "own"})
    assert "the image is made for store only" in fault


def test_every_image_of_others_has_facts_of_its_tag() -> None:
    pinned = {image.name for image in image_lock.images(CHECKOUT)} - {"debian:trixie-slim"}
    assert pinned == {f"{entry['image']}:{entry['tag']}" for entry in IMAGES.values()}
    for name, entry in {**IMAGES, **BUILT}.items():
        assert entry["source"], name
        assert isinstance(entry["released"], date), name


def test_metrics_of_rules_and_dashboards_are_exported() -> None:
    folders = (CHECKOUT / "docker/prometheus/rules", CHECKOUT / "docker/grafana/dashboards")
    text = "\n".join(file.read_text() for folder in folders for file in sorted(folder.iterdir()))
    read = contract.reads(text, ("pg_", "DCGM_", "gpu_")) - {"gpu_id"}
    exported = {metric for entry in IMAGES.values() for metric in entry.get("exports", [])}
    assert read == exported


@pytest.mark.parametrize("name", ["dcgm-exporter", "amd-exporter"])
def test_stand_in_of_exporter_has_metrics_of_the_facts(name: str) -> None:
    folder = IMAGES[name]["image"].rpartition("/")[2]
    text = (CHECKOUT / "tests/stack/bases" / folder / "metrics.txt").read_text()
    assert set(re.findall(r"^(\w+)\{", text, re.MULTILINE)) == set(IMAGES[name]["exports"])
    assert set(re.findall(r'(\w+)="', text)) == set(IMAGES[name]["labels"])


FIXED = [{"release": "3.5.2", "hole": "first"}, {"release": "3.11.3", "hole": "second"}]


@pytest.mark.parametrize(
    ("pin", "found"),
    [
        ("v3.5.0", ["first, fixed in 3.5.2"]),
        ("v3.5.2", []),
        ("3.5.10-alpine3.21", []),
        ("v3.11.2", ["second, fixed in 3.11.3"]),
        ("v3.4.9", ["first, fixed in 3.5.2", "second, fixed in 3.11.3"]),
        ("v3.10.0", ["second, fixed in 3.11.3"]),
        ("v3.12.0", []),
    ],
)
def test_pin_below_a_fix_of_its_line_has_the_hole(pin: str, found: list[str]) -> None:
    assert list(facts.holes(pin, FIXED)) == found


def test_pins_have_no_known_hole_and_versions_of_facts() -> None:
    assert list(facts.problems()) == []


def test_pin_of_a_vulnerable_release_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = facts.FILE.read_text()
    changed = text.replace('tag = "17.11-trixie"', 'tag = "17.9-trixie"').replace('"v2.11.9"\n', '"v2.11.7"\n')
    (tmp_path / "facts.toml").write_text(changed)
    monkeypatch.setattr(facts, "FILE", tmp_path / "facts.toml")
    found = "\n".join(facts.problems())
    assert "postgres 17.9-trixie has a known hole: 11 CVEs" in found
    assert "images/proxy/Dockerfile: CADDY_VERSION is v2.11.9, the facts are of v2.11.7" in found


def test_old_pins_are_named_by_date_alone() -> None:
    released = {entry["released"] for entry in (*IMAGES.values(), *BUILT.values())}
    first, last = min(released), max(released)
    assert list(facts.old(first)) == []
    assert len(list(facts.old(last + timedelta(days=facts.OLD_DAYS + 1)))) == len(IMAGES) + len(BUILT)
    assert facts.main() == 0, "age fails nothing"
