"""Variables that the gateway adds to an attempt of a person's job, and the warm start of its programs."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from gateway_parts import Gateway
from test_attempt_secrets import started
from warm import running_template

from mlplatform.secret_folder import FOLDER, TOKEN
from mlplatform.warm.variables import AFTER_FORK, OF_DRIVERS


@pytest.mark.parametrize("variable", ["NO_PROXY", "no_proxy"])
def test_job_with_own_hosts_without_proxy_reaches_platform(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("NO_PROXY", "mlflow,minio")
    given = asyncio.run(started(gateway, **{variable: "hub.corp.example"}))["runtime_env"]["env_vars"]
    for name in ("NO_PROXY", "no_proxy"):
        assert {"hub.corp.example", "mlflow", "minio", "127.0.0.1"} <= set(given[name].split(","))
    assert "NO_PROXY" not in asyncio.run(gateway.store.get("mine")).runtime_env["env_vars"].keys() - {variable}


def test_account_secrets_and_grace_allow_warm_start(gateway: Gateway, tmp_path: Path) -> None:
    given = asyncio.run(started(gateway))["runtime_env"]["env_vars"]
    parts = {TOKEN, FOLDER, "RAY_JOB_STOP_WAIT_TIME_S"}
    assert parts <= given.keys(), "it is not the request of a person with account, secrets and grace"
    # The nodes' templates import Ray and MLflow, which this environment may lack; nothing but the list speaks for them.
    undecided = given.keys() - AFTER_FORK.keys() - OF_DRIVERS.keys()
    assert [name for name in sorted(undecided) if not name.startswith("MLPLATFORM_")] == []
    program = f"import json, os; print(json.dumps({{name: os.environ.get(name) for name in {sorted(given)}}}))"
    (tmp_path / "program.py").write_text(program)
    with running_template(tmp_path / "warm") as warm:
        command, environment = warm.command([str(tmp_path / "program.py")]), warm.environment(given)
        printed = subprocess.check_output(command, env=environment, cwd=tmp_path, timeout=60)
        assert warm.reasons() == [None]
    assert json.loads(printed) == given
