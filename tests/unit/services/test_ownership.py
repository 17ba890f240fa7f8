"""Owners of volumes: changed completely, resumed after an interruption, and never beyond the volume."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mlplatform.errors import HostError
from mlplatform.services import ownership
from mlplatform.services.ownership import OWNERS, give, give_all

CHECKOUT = Path(__file__).parents[3]
RAY = OWNERS["ray"]
FORMER = (65534, 0)

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others; CI runs as root")


def owned_by(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid


def everything(volume: Path) -> list[Path]:
    return [volume, *volume.rglob("*")]


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume as Docker fills one with the files of an image, with folders that only their owner may read."""
    root = tmp_path / "volumes" / "ray" / "shared"
    (root / "a" / "b").mkdir(parents=True)
    for name in ("top", "a/one", "a/b/two"):
        (root / name).write_text(name)
    (root / "a" / "b" / "two").chmod(0o600)
    for path in everything(root):
        os.chown(path, *FORMER) if os.getuid() == 0 else None
    (root / "a").chmod(0o700)
    return root


@as_root
def test_volume_is_given_once_with_content_and_modes_kept(
    volume: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = {path: path.lstat().st_mode for path in everything(volume)}
    give_all(volume.parents[1])
    assert {owned_by(path) for path in everything(volume)} == {RAY}
    assert {path: path.lstat().st_mode for path in everything(volume)} == modes
    assert (volume / "a/b/two").read_text() == "a/b/two"
    assert capsys.readouterr().out == "shared: 6 files and folders now belong to 27003:27003 (ray).\n"
    monkeypatch.setattr(os, "fwalk", lambda *_, **__: pytest.fail("it was searched again"))
    assert give(volume, RAY) == 0


@as_root
@pytest.mark.parametrize("after", range(6))
def test_interrupted_pass_is_completed_by_next(volume: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chown, done = os.chown, []

    def interrupted(*arguments: Any, **options: Any) -> None:
        if len(done) == after:
            raise KeyboardInterrupt
        chown(*arguments, **options)
        done.append(arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "chown", interrupted)
        with pytest.raises(KeyboardInterrupt):
            give(volume, RAY)
    assert owned_by(volume) == FORMER, "the volume counts as finished"
    assert give(volume, RAY) == 6 - after
    assert {owned_by(path) for path in everything(volume)} == {RAY}


@as_root
def test_targets_of_links_keep_their_owner(volume: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("of the host")
    (volume / "to-folder").symlink_to(outside)
    (volume / "a" / "to-file").symlink_to(outside / "file")
    give(volume, RAY)
    assert {owned_by(path) for path in (outside, outside / "file")} == {(0, 0)}
    assert {owned_by(volume / "to-folder"), owned_by(volume / "a/to-file")} == {RAY}


@as_root
def test_other_file_systems_in_volume_are_left_out(volume: Path) -> None:
    mounted = volume / "a" / "mounted"
    mounted.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "none", str(mounted)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine does not allow mounts")
    try:
        (mounted / "file").write_text("x")
        give(volume, RAY)
        assert {owned_by(mounted), owned_by(mounted / "file")} == {(0, 0)}
        assert owned_by(volume / "a/b/two") == RAY
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@as_root
def test_unchangeable_volume_is_reported_and_not_finished(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system", "two")

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(HostError, match=r"The volume shared could not be given to user 27003 .*Read-only file system"):
        give_all(volume.parents[1])
    assert owned_by(volume) == FORMER


@as_root
@pytest.mark.parametrize(("user", "refused"), [(999, True), (0, False)])
def test_volumes_of_former_version_are_refused_and_kept(volume: Path, user: int, refused: bool) -> None:
    cluster = volume.parents[1] / "postgres" / "postgres" / "PG_VERSION"
    cluster.parent.mkdir(parents=True)
    cluster.write_text("17\n")
    os.chown(cluster, user, user)
    if refused:
        with pytest.raises(HostError, match=r"version 0\.3 or earlier, .* `git reflog` names, .* another STACK_PREFIX"):
            give_all(volume.parents[1])
        assert (owned_by(cluster), owned_by(volume)) == ((999, 999), FORMER)
    else:
        give_all(volume.parents[1])
        assert (owned_by(cluster), owned_by(volume)) == (OWNERS["postgres"], RAY)


def test_no_id_is_low_or_shared() -> None:
    ids = [uid for uid, _ in OWNERS.values()]
    assert len(set(ids)) == len(ids)
    assert min(ids) >= 20000


@pytest.mark.parametrize(("image", "user"), [("minio", "store"), ("platform", "platform"), ("ray", "ray")])
def test_images_create_user_with_id_of_table(image: str, user: str) -> None:
    text = (CHECKOUT / "images" / image / "Dockerfile").read_text()
    uid, gid = OWNERS[user]
    assert re.search(rf"groupadd --gid {gid} {image}\b", text)
    assert re.search(rf"useradd --uid {uid} --gid {image}\b", text)
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] == image


def mounted_by_ownership() -> dict[str, str]:
    """The user to whom each volume is given, by the volume's name, for the shipped compose files."""
    found = {}
    for path in CHECKOUT.glob("compose/**/*.yaml"):
        for name, service in (yaml.safe_load(path.read_text()).get("services") or {}).items():
            for mount in service.get("volumes", []) if name.startswith("ownership") else ():
                volume, target = mount.split(":")[:2]
                if target.startswith(f"{ownership.VOLUMES}/"):
                    user, folder = target.removeprefix(f"{ownership.VOLUMES}/").split("/")
                    assert folder == volume, mount
                    found[volume] = user
    return found


def test_every_volume_is_given_to_user_of_its_service() -> None:
    declared: set[str] = set()
    for path in CHECKOUT.glob("compose/**/*.yaml"):
        declared |= set(yaml.safe_load(path.read_text()).get("volumes") or {})
    # Root owns these: the hub configures interfaces, `make data` fills the data set's volume, backups read everything.
    assert declared - {"hub", "food11", "backup-spool", "backup-state"} == set(mounted_by_ownership())
    assert set(mounted_by_ownership().values()) <= OWNERS.keys()
