"""Python packages of the ray image: hashes for all of them, or a sentence before anything is installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RAY = Path(__file__).parents[2] / "images" / "ray"
REFUSAL = "list your team's packages in extra-requirements.in, then run `make lock ONLY=extra`"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the image's build copies, and a `uv` that writes what it is asked for to `calls`."""
    shutil.copytree(RAY, tmp_path / "ray")
    for name in ("uv", "python", "apt-get"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\n[ {name} = python ] || echo "{name} $*" >>{tmp_path}/ray/calls\n')
        program.chmod(0o755)
    return tmp_path / "ray"


def install(
    folder: Path, accelerator: str = "cpu", **variables: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the installation; return its end and the calls of uv."""
    environment = {"PATH": f"{folder.parent}/bin:{os.defpath}", "ACCELERATOR": accelerator, **variables}
    done = subprocess.run(["sh", folder / "install.sh"], env=environment, capture_output=True, text=True, check=False)
    calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    return done, [call for call in calls if call.startswith("uv ")]


def test_every_package_is_installed_with_hashes(folder: Path) -> None:
    done, calls = install(folder)
    assert done.returncode == 0, done.stderr
    assert [call.rpartition(" ")[2] for call in calls] == ["requirements.txt", "extra-requirements.txt"]
    assert all("--require-hashes" in call for call in calls)


@pytest.mark.parametrize("name", ["extra-requirements.in", "extra-requirements.txt"])
def test_package_without_hash_is_refused_first(folder: Path, name: str) -> None:
    with (folder / name).open("a") as file:
        file.write("roman==5.1\n")
    done, calls = install(folder)
    assert done.returncode == 2
    assert REFUSAL in done.stderr
    assert not calls


def test_plain_list_of_earlier_version_is_refused(folder: Path) -> None:
    (folder / "extra-requirements.txt").write_text("# Packages of your team.\nroman==5.1\n")
    done, calls = install(folder)
    assert (done.returncode, calls) == (2, [])
    assert REFUSAL in done.stderr


@pytest.mark.parametrize(("accelerator", "needed"), [("rocm", "pyrsmi"), ("cuda", "nvidia-ml-py"), ("cpu", "torch")])
def test_builds_of_other_index_without_hashes_are_reported(folder: Path, accelerator: str, needed: str) -> None:
    done, calls = install(folder, accelerator, TORCH_INDEX_URL="https://torch.example.org")
    assert done.returncode == 0, done.stderr
    assert "The builds of TORCH_INDEX_URL have no hashes yet" in done.stderr
    assert calls[0].endswith("--constraint versions.txt --requirement torch.in")
    assert needed in (folder / "torch.in").read_text().splitlines()
    versions = (folder / "versions.txt").read_text().splitlines()
    assert any(line.startswith("torch==") for line in versions)
    assert not [line for line in versions if line.startswith(("nvidia-", "cuda", "triton"))]


def test_pinned_builds_of_other_index_are_installed_with_hashes(folder: Path) -> None:
    pinned = subprocess.run(["sha256sum", folder / "requirements.txt"], capture_output=True, text=True, check=True)
    header = f"# for rocm\n# sha256 of requirements.txt: {pinned.stdout.split()[0]}\n"
    index = {"TORCH_INDEX_URL": "https://torch.example.org"}
    (folder / "torch-requirements.txt").write_text(header)
    done, calls = install(folder, "rocm", **index)
    assert done.returncode == 0, done.stderr
    assert calls[0].endswith("--require-hashes --requirement torch-requirements.txt")
    assert "have no hashes yet" in install(folder, "cuda", **index)[0].stderr, "pinned for another accelerator"
    (folder / "torch-requirements.txt").write_text(f"{header[:-9]}\n")
    assert "have no hashes yet" in install(folder, "rocm", **index)[0].stderr, "pinned for other versions"


@pytest.mark.parametrize(
    ("accelerator", "message"), [("tpu", "use cpu, cuda or rocm"), ("rocm", "set TORCH_INDEX_URL in .env")]
)
def test_unusable_accelerator_is_refused(folder: Path, accelerator: str, message: str) -> None:
    done, calls = install(folder, accelerator)
    assert (done.returncode, calls) == (2, [])
    assert message in done.stderr
