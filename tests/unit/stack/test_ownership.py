"""Owners of volumes: changed completely, resumed after an interruption, and never beyond the volume."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mlplatform.errors import HostError
from mlplatform_stack import declared, generated
from mlplatform_stack.bootstrap.ownership import give, give_all, parse
from mlplatform_stack.settings import StackSettings

CHECKOUT = Path(__file__).parents[3]
RAY = (27003, 27003)
FORMER = (65534, 0)
GIVEN = {"shared": RAY}

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others; CI runs as root")


def owned_by(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid


def everything(volume: Path) -> list[Path]:
    return [volume, *volume.rglob("*")]


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume as Docker fills one with the files of an image, with folders that only their owner may read."""
    root = tmp_path / "volumes" / "shared"
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
    give_all(volume.parent, GIVEN)
    assert {owned_by(path) for path in everything(volume)} == {RAY}
    assert {path: path.lstat().st_mode for path in everything(volume)} == modes
    assert (volume / "a/b/two").read_text() == "a/b/two"
    assert capsys.readouterr().out == "shared: 6 files and folders now belong to 27003:27003.\n"
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
        give_all(volume.parent, GIVEN)
    assert owned_by(volume) == FORMER


@as_root
@pytest.mark.parametrize(("user", "refused"), [(999, True), (0, False)])
def test_volumes_of_former_version_are_refused_and_kept(volume: Path, user: int, refused: bool) -> None:
    cluster, owners = volume.parent / "postgres" / "PG_VERSION", parse(["shared=27003:27003", "postgres=27004:27005"])
    cluster.parent.mkdir(parents=True)
    cluster.write_text("17\n")
    os.chown(cluster, user, user)
    if refused:
        with pytest.raises(HostError, match=r"version 0\.3 or earlier, .* `git reflog` names, .* another STACK_PREFIX"):
            give_all(volume.parent, owners)
        assert (owned_by(cluster), owned_by(volume)) == ((999, 999), FORMER)
    else:
        give_all(volume.parent, owners)
        assert (owned_by(cluster), owned_by(volume)) == ((27004, 27005), RAY)


@pytest.mark.parametrize(
    ("image", "owner"),
    [("minio", "27001:27001"), ("platform", "27002:27002"), ("ray", "27003:27003"), ("proxy", "27009:27009")],
)
def test_images_create_user_with_id_of_compose_files(image: str, owner: str) -> None:
    uid, gid = owner.split(":")
    text = (CHECKOUT / "images" / image / "Dockerfile").read_text()
    name = re.findall(rf"groupadd --gid {gid} (\S+)", text)[-1]
    assert re.search(rf"useradd --uid {uid} --gid ({gid}|{name})\b", text)
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] in (name, owner)
    services = declared.services(CHECKOUT, StackSettings.defaults(), generated=False).values()
    ours = [service for service in services if re.search(rf"\bmlplatform-{image}:", service["image"])]
    assert ours
    assert {declared.facts(service).get("owner", owner) for service in ours} == {owner}


FILES = [file for file in CHECKOUT.glob("compose/*.yaml") if ".generated." not in file.name]
VOLUMES = {volume for file in FILES for volume in yaml.safe_load(file.read_text()).get("volumes") or {}}

NOT_SAVED = {
    *("postgres", "minio", "ray-control", "ray-head-logs", "shared", "food11", "notebook-cache"),
    *("mlflow-spool", "gateway-spool", "prometheus", "alertmanager", "grafana-dashboards", "proxy", "hub"),
    *("backup-spool", "backup-state"),
}
"""Volumes whose content is saved as dumps and objects, can be made again, or belongs to this host."""


def test_every_volume_is_given_to_user_of_its_service() -> None:
    services = declared.services(CHECKOUT, StackSettings.defaults(), generated=False)
    owners = generated.owners_of_volumes(services)
    # Root owns these: the hub configures interfaces, `make data` fills the data set's volume, backups read everything.
    assert VOLUMES - {"hub", "food11", "backup-spool", "backup-state"} == set(owners)
    for name, service in services.items():
        owner = declared.facts(service).get("owner", service.get("user"))
        mounts = [mount.partition(":")[0] for mount in service.get("volumes", []) if not mount.endswith(":ro")]
        others = [volume for volume in mounts if owners.get(volume, owner) != owner and owner != "root"]
        assert not others, f"{name} writes to {others}, which belong to others"


@pytest.mark.parametrize("service", ["backup", "backup-timer", "restore"])
def test_every_volume_is_saved_or_named_as_not_saved(service: str) -> None:
    mounts = declared.services(CHECKOUT, StackSettings.defaults(), generated=False)[service]["volumes"]
    saved = {volume for volume in VOLUMES for mount in mounts if mount.startswith(f"{volume}:/volumes/{volume}")}
    assert saved == VOLUMES - NOT_SAVED, f"mount each at /volumes/<its name> in {service}, or add it to NOT_SAVED"


def test_joined_host_gives_volumes_to_user_of_its_worker() -> None:
    folder = CHECKOUT / "compose"
    ownership = declared.of_file(folder / "joined/compose.yaml")["ownership"]
    owner = declared.facts(declared.inherited(folder / "base.yaml", "worker-of-host", {}))["owner"]
    names = ["logs", "shared", "homes"]
    assert ownership["command"] == [f"{name}={owner}" for name in names]
    assert ownership["volumes"] == [f"{name}:/volumes/{name}" for name in names]
