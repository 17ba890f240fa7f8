"""The package as a wheel at the gateway, for laptops without a checkout and, at first, without a token."""

import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest
from peopled import as_person
from started_gateway import StartedGateway

PACKAGE = Path(__file__).parents[4] / "platform" / "mlplatform"
WHEEL = f"mlplatform-{version('mlplatform')}-py3-none-any.whl"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel, built by the command of the image."""
    folder = tmp_path_factory.mktemp("wheels")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(PACKAGE)], check=True)
    return folder


def test_pip_installs_the_command_line_without_token(started: StartedGateway, wheels: Path, tmp_path: Path) -> None:
    started.wheels = wheels
    with started.running() as client:
        options = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", "--upgrade"]
        for source in (
            [f"{client.base_url}/platform/wheel/{WHEEL}"],
            ["--find-links", f"{client.base_url}/platform/wheel/", "mlplatform"],
        ):
            subprocess.run(
                [sys.executable, "-m", "pip", "install", *options, "--target", f"{tmp_path}/site", *source], check=True
            )
            assert (tmp_path / "site/mlplatform/cli/submit.py").is_file()
            assert (tmp_path / "site/bin/mlplatform").is_file()
        answer = client.get(f"/platform/wheel/{WHEEL}")
    (tmp_path / "copy").write_bytes(answer.content)
    with zipfile.ZipFile(tmp_path / "copy") as wheel:
        assert all(name.startswith("mlplatform") for name in wheel.namelist())
        (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        assert "Requires-Dist: httpx" in wheel.read(metadata).decode()


def test_documents_name_the_wheel_of_this_version() -> None:
    assert f"/platform/wheel/{WHEEL}" in (PACKAGE.parents[1] / "docs/people.md").read_text()


def test_only_wheels_are_served(started: StartedGateway, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    for name in ("wheels/notes.txt", "secret.whl"):
        (tmp_path / name).write_text("private")
    started.wheels = tmp_path / "wheels"
    with started.running() as client, as_person(client, "") as nobody:
        assert "href" not in nobody.get("/platform/wheel/").text
        for path in ("notes.txt", "..%2fsecret.whl", "%2e%2e/secret.whl", "a/b", ""):
            answer = nobody.get(f"/platform/wheel/{path}")
            assert "private" not in answer.text, path


def test_gateway_outside_of_the_image_has_no_wheel(started: StartedGateway) -> None:
    with started.running() as client, httpx.Client(base_url=client.base_url) as nobody:
        assert nobody.get("/platform/wheel/").status_code == 200
        missing = nobody.get(f"/platform/wheel/{WHEEL}")
        assert (missing.status_code, missing.text[:29]) == (404, "The gateway does not have thi")
        assert nobody.post("/platform/wheel/").status_code == 401
