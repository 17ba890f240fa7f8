"""Lists of packages in runtime environments: an environment in front of the node's, with what pip and uv add to it."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from package_index import served, wheel
from ray._private.runtime_env import dependency_utils, virtualenv_utils
from ray._private.runtime_env.pip import PipPlugin, PipProcessor
from ray._private.runtime_env.uv import UvPlugin, UvProcessor
from ray.runtime_env import RuntimeEnv

from mlplatform.compat import ray_runtime_env_agent

PLUGINS = {"pip": PipPlugin, "uv": UvPlugin}

SHOW = """\
import json, sys
from importlib.metadata import version
print(json.dumps({"prefix": sys.prefix, "ray": __import__("ray").__file__, **{n: version(n) for n in sys.argv[1:]}}))
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index with two packages: `ours` needs one of the platform, `strict` another version of it."""
    index = tmp_path_factory.mktemp("index")
    wheel(index, "ours", "1.0", f"httpx=={version('httpx')}", files={"ours.py": "", "ours_data/large": "x" * 100_000})
    wheel(index, "strict", "1.0", "httpx==9999")
    for number in (version("httpx"), "9999"):
        wheel(index, "httpx", number)
    wheel(index, "ray", "2.59.0")
    with served(index) as address:
        yield address


@pytest.fixture(autouse=True)
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change Ray as its agent does, with caches of this test's own."""
    replaced = (
        (virtualenv_utils, "create_or_get_virtualenv"),
        (dependency_utils, "check_ray"),
        (PipProcessor, "_install_pip_packages"),
        (UvProcessor, "_install_uv_packages"),
    )
    for owner, name in replaced:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache/uv"))
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "cache/pip"))
    ray_runtime_env_agent.overlay_packages()


def installed(folder: Path, kind: str, packages: list[str], **options: Any) -> Path:
    """Let Ray's plugin install a list; return the environment."""
    environment = RuntimeEnv(**{kind: {"packages": packages, **options}})
    plugin = PLUGINS[kind](str(folder))
    (uri,) = plugin.get_uris(environment)
    asyncio.run(plugin.create(uri, environment, None, logging.getLogger("test")))
    return folder / kind / uri.partition("://")[2] / "virtualenv"


def shown(environment: Path, *names: str) -> dict[str, str]:
    command = [environment / "bin/python", "-c", SHOW, *names]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def own(environment: Path) -> set[str]:
    return {info.name.removesuffix(".dist-info") for info in environment.glob("lib/*/site-packages/*.dist-info")}


@pytest.mark.parametrize("kind", PLUGINS)
def test_list_adds_to_environment_of_node(tmp_path: Path, address: str, kind: str) -> None:
    environment = installed(tmp_path, kind, [f"--index-url={address}", "ours"], **{f"{kind}_check": kind == "uv"})
    assert own(environment) == {"ours-1.0"}
    found = shown(environment, "ours", "httpx")
    assert found["prefix"] == str(environment)
    assert found["ray"].startswith(sys.prefix)
    assert found["httpx"] == version("httpx")


@pytest.mark.parametrize("kind", PLUGINS)
def test_list_shadows_packages_of_node(tmp_path: Path, address: str, kind: str) -> None:
    environment = installed(tmp_path, kind, [f"--index-url={address}", "strict"])
    assert own(environment) == {"strict-1.0", "httpx-9999"}
    assert shown(environment, "httpx")["httpx"] == "9999"


def test_files_of_uv_lists_are_linked_to_cache(tmp_path: Path, address: str) -> None:
    environment = installed(tmp_path, "uv", [f"--index-url={address}", "ours"])
    other = installed(tmp_path, "uv", [f"--index-url={address}", "ours==1.0"])
    (file,), (same,) = (found.glob("lib/*/site-packages/ours_data/large") for found in (environment, other))
    assert file.samefile(same)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("pip", {"pip_install_options": ["--no-deps", "--no-cache-dir"], "pip_version": f"=={version('pip')}"}),
        ("uv", {"uv_pip_install_options": ["--no-deps", "--no-cache"], "uv_version": f"=={version('uv')}"}),
    ],
)
def test_options_of_list_are_obeyed(tmp_path: Path, address: str, kind: str, options: dict[str, Any]) -> None:
    environment = installed(tmp_path, kind, [f"--index-url={address}", "strict"], **options)
    assert own(environment) == {"strict-1.0"}
    assert not [file for file in (tmp_path / "cache").rglob("*") if "strict" in file.name]


@pytest.mark.parametrize("kind", PLUGINS)
def test_unresolvable_list_fails_in_time_with_resolvers_sentence(tmp_path: Path, address: str, kind: str) -> None:
    began = time.monotonic()
    with pytest.raises(Exception, match=r"No matching distribution found|No solution found") as failed:
        installed(tmp_path, kind, [f"--index-url={address}", "ours==7"])
    assert "ours==7" in str(failed.value)
    # Ray tries three times.
    assert time.monotonic() - began < 10
    assert not list((tmp_path / kind).glob("*"))


@pytest.mark.parametrize("kind", PLUGINS)
def test_other_version_of_ray_is_refused(tmp_path: Path, address: str, kind: str) -> None:
    with pytest.raises(RuntimeError, match=r"include ray 2\.59\.0: its nodes need ray==2\.60"):
        installed(tmp_path, kind, [f"--index-url={address}", "ray==2.59.0"])


@pytest.mark.parametrize("kind", PLUGINS)
def test_interrupted_list_is_installed_again(tmp_path: Path, address: str, kind: str) -> None:
    environment = installed(tmp_path, kind, [f"--index-url={address}", "ours"])
    (module,) = environment.glob("lib/*/site-packages/ours.py")
    module.unlink()
    # A new agent has no record of it.
    assert installed(tmp_path, kind, [f"--index-url={address}", "ours"]) == environment
    assert module.exists()
