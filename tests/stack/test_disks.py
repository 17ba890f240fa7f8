"""Disks of the object store and the databases: their space is known, and new jobs are rejected for lack of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from host import Stack, run, wait_for

from mlplatform.client.jobs import Jobs


def test_gateway_sees_space_of_both_disks_but_no_file(stack: Stack) -> None:
    def space(metric: str) -> dict[str, float]:
        return {found["metric"]["disk"]: float(found["value"][1]) for found in stack.prometheus(metric)}

    size = wait_for(lambda: space("mlplatform_disk_size_bytes"), "the metric to be scraped")
    free = space("mlplatform_disk_free_bytes")
    assert size.keys() == free.keys() == {"databases", *(["object store"] if stack.own_store else [])}
    assert all(0 < free[disk] < size[disk] for disk in size)
    for folder in (disk.replace(" ", "-") for disk in size):
        listed = stack.execute("gateway", "ls", f"/disks/{folder}", check=False)
        assert "Permission denied" in listed.stderr, f"the gateway can read the files of {folder}"


# Writes for as long as a person needs to make room; a job that cannot write waits.
WRITES = """
import pathlib, time
from mlplatform.storage import addresses
from mlplatform.storage.filesystem import filesystem
files, folder = filesystem(addresses.checkpoint_uri("fit"))
for number in range(1000):
    with files.open_output_stream(f"{folder}/{number}") as stream:
        stream.write(bytes(1 << 16))
    print("wrote", number, flush=True)
    if files.get_file_info(f"{folder}/enough").is_file:
        break
    time.sleep(0.5)
"""


@dataclass(frozen=True)
class SmallDisk:
    """A file system on a loop device of this test, in the place of a volume; `fill` leaves no byte of it free."""

    place: Path

    def fill(self) -> None:
        """Fill it as root, for whom the file system reserves nothing."""
        run("sh", "-c", f"cat /dev/zero >{self.place}/filler", check=False)
        assert shutil.disk_usage(self.place).free < 1 << 20

    def make_room(self) -> None:
        (self.place / "filler").unlink()


@pytest.fixture
def small_disks(stack: Stack, tmp_path: Path) -> Iterator[dict[str, SmallDisk]]:
    """The volumes of MinIO and Postgres on small disks with their contents, which are copied back afterwards."""
    if os.geteuid() or run("losetup", "--find", check=False).returncode:
        pytest.skip("needs root and a free loop device, to fill disks of its own")
    places = {name: stack.volume(name) for name in ("minio", "postgres")}
    stack.compose("stop", "gateway", *places)
    try:
        for name, place in places.items():
            mount_small_disk(place, tmp_path / name)
        with stack.changed(DISK_RESERVE_GB="0.05"):
            stack.up()
            yield {name: SmallDisk(place) for name, place in places.items()}
    finally:
        stack.compose("stop", "gateway", *places)
        for name, place in places.items():
            unmount_small_disk(place, tmp_path / name)
        stack.up()


def mount_small_disk(place: Path, folder: Path) -> None:
    """Copy a folder to a new file system with 300 MB to spare, and mount that over the folder."""
    used = int(run("du", "--summarize", "--bytes", str(place)).stdout.split()[0])
    (folder / "new").mkdir(parents=True)
    run("truncate", f"--size={used * 5 // 4 + 300_000_000}", str(folder / "image"))
    run("mkfs.ext4", "-q", "-m", "0", "-E", "root_owner=0:0", str(folder / "image"))
    device = run("losetup", "--find", "--show", str(folder / "image")).stdout.strip()
    (folder / "device").write_text(device)
    run("mount", device, str(folder / "new"))
    run("rmdir", str(folder / "new" / "lost+found"))
    run("cp", "--archive", f"{place}/.", str(folder / "new"))
    run("umount", str(folder / "new"))
    run("mount", device, str(place))


def unmount_small_disk(place: Path, folder: Path) -> None:
    """Unmount it and copy its contents back."""
    if place.is_mount():
        run("umount", str(place))
        device = (folder / "device").read_text()
        run("mount", device, str(folder / "new"))
        run("sh", "-c", f"find {place} -mindepth 1 -delete && cp --archive {folder}/new/. {place}")
        run("umount", str(folder / "new"))
    if (folder / "device").is_file():
        run("losetup", "--detach", (folder / "device").read_text())


@pytest.mark.nightly
@pytest.mark.minio
def test_full_disks_are_named_and_work_continues(
    stack: Stack, small_disks: dict[str, SmallDisk], jobs: Jobs, tmp_path: Path
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "writes.py").write_text(WRITES)
    job = jobs.submit("python writes.py", tmp_path / "job", name="writes")

    def written() -> int:
        return len(stack.objects("ray", f"{job}/fit/"))

    def check_state(disk: str) -> None:
        sentence = f"New jobs are rejected: the disk of the {disk} is full ("
        with stack.ray as gateway:
            rejected = gateway.post("/api/jobs/", json={"entrypoint": "true"})
            assert rejected.status_code == 507
            assert rejected.text.startswith(sentence)
            assert any(sentence in text for text in gateway.get("/platform/overview").json()["problems"])
        # By the alert, which fires after a scrape and an evaluation.
        named = f"New jobs are rejected: the disk of the {disk} has "
        wait_for(lambda: named in doctor(stack), "the doctor to name the disk", 90)

    wait_for(lambda: written() > 1, "the job to write")
    small_disks["minio"].fill()
    check_state("object store")
    before = written()
    wait_for(lambda: "full" in put_error(stack), "MinIO to reject writes for lack of space")
    assert written() <= before + 2, "it writes to a full disk"
    small_disks["minio"].make_room()
    wait_for(lambda: written() > before + 2, "the job to continue")

    small_disks["postgres"].fill()
    check_state("databases")
    rows = "CREATE TABLE filler AS SELECT generate_series(1, 1000000)"
    refused = stack.execute("postgres", "psql", "--username=postgres", "--command", rows, check=False)
    assert refused.returncode, "it stores rows on a full disk"
    check_state("databases")
    small_disks["postgres"].make_room()
    stack.s3.put_object(Bucket="ray", Key=f"{job}/fit/enough", Body=b"")
    wait_for(lambda: not stack.unhealthy(), "every service to be healthy")
    for job_id in (job, jobs.submit("true", tmp_path / "job", name="after")):
        assert jobs.wait(job_id, 180).status == "SUCCEEDED"


def doctor(stack: Stack) -> str:
    return run(str(stack.root / ".venv/bin/mlplatform"), "doctor", check=False, cwd=stack.root).stdout


def put_error(stack: Stack) -> str:
    try:
        stack.s3.put_object(Bucket="ray", Key="full/probe", Body=bytes(1 << 20))
    except ClientError as error:
        return str(error).lower()
    stack.s3.delete_object(Bucket="ray", Key="full/probe")
    return ""
