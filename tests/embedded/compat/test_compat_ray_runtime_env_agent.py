"""Ray's agent for runtime environments: a package is unpacked once, however many jobs ask for it together."""

from __future__ import annotations

import asyncio
import io
import os
import zipfile
from pathlib import Path

import pytest
from embedded import command, processes
from ray._private.runtime_env import plugin as plugins
from ray._private.runtime_env.context import RuntimeEnvContext
from ray._private.runtime_env.uri_cache import URICache
from ray._private.runtime_env.working_dir import WorkingDirPlugin
from ray.runtime_env import RuntimeEnv

from mlplatform.compat import ray_runtime_env_agent
from mlplatform.local.platform import LocalPlatform
from mlplatform.settings.job import Settings

NAME = "_ray_pkg_0123456789abcdef"


class SlowHead:
    """The head's store of packages, which answers late."""

    async def async_internal_kv_get(self, key: bytes, **_: object) -> bytes:
        await asyncio.sleep(0.2)
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("train.py", "print(1)")
        return content.getvalue()


def test_second_job_leaves_folder_of_first_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "create_for_plugin_if_needed", plugins.create_for_plugin_if_needed)
    ray_runtime_env_agent.unpack_once()
    plugin = WorkingDirPlugin(str(tmp_path), SlowHead())
    folder = tmp_path / "working_dir_files" / NAME
    cache = URICache(plugin.delete_uri)

    async def create() -> None:
        environment = RuntimeEnv(working_dir=f"gcs://{NAME}.zip")
        await plugins.create_for_plugin_if_needed(environment, plugin, cache, RuntimeEnvContext())

    async def both() -> tuple[int, int]:
        first, second = asyncio.create_task(create()), asyncio.create_task(create())
        await first
        in_use = os.open(folder, os.O_RDONLY)  # keeps the number from being used again
        before = os.fstat(in_use).st_ino
        await second
        os.close(in_use)
        return before, folder.stat().st_ino

    before, after = asyncio.run(both())
    assert after == before
    assert (folder / "train.py").is_file()


def test_nodes_agent_is_replaced(local: LocalPlatform, reached: Settings) -> None:
    (raylet,) = [process for process in processes(local) if process.name() == "raylet"]
    assert ray_runtime_env_agent.__file__ in command(raylet)
    assert str(ray_runtime_env_agent.private("runtime_env/agent/main.py")) not in command(raylet)
