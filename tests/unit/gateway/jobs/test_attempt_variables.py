"""Variables that the gateway adds to an attempt of a person's job, and the warm start of its programs.

Values of secrets never reach Ray, only a folder and a token that ends with the attempt.
"""

import json
import subprocess
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from gateway_parts import Gateway, add_alice, variables_of
from warm import running_template

from mlplatform.errors import SettingsError
from mlplatform.secrets.secret_folder import FOLDER, TOKEN, folder_of
from mlplatform_gateway.audit.store import PLATFORM
from mlplatform_gateway.people.secrets import Secrets
from mlplatform_warm.variables import AFTER_FORK, OF_DRIVERS


@pytest.fixture
async def secret(gateway: Gateway) -> None:
    """A secret of alice."""
    await add_alice(gateway)
    await Secrets(gateway.store.engine, Fernet.generate_key().decode()).put("alice", "KEY", b"of-alice", PLATFORM)


@pytest.mark.usefixtures("secret")
async def test_ray_gets_folder_and_token_but_no_value(gateway: Gateway) -> None:
    variables = await variables_of(gateway)
    (request,) = gateway.head.requests
    assert variables[FOLDER] == folder_of(request["submission_id"])
    assert variables[TOKEN].startswith("mlp_")
    assert "of-alice" not in json.dumps(request)
    assert (await gateway.store.get("mine")).runtime_env == {"env_vars": {}}


@pytest.mark.usefixtures("secret")
async def test_variable_that_a_job_sets_takes_precedence(gateway: Gateway) -> None:
    assert (await variables_of(gateway, **{FOLDER: "/own"}))[FOLDER] == "/own"


def test_invalid_key_is_an_error(idle: Gateway) -> None:
    with pytest.raises(SettingsError, match="is not one of cryptography"):
        Secrets(idle.store.engine, "short")


@pytest.mark.parametrize("variable", ["NO_PROXY", "no_proxy"])
async def test_job_with_own_hosts_without_proxy_reaches_platform(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("NO_PROXY", "mlflow,minio")
    await add_alice(gateway)
    given = await variables_of(gateway, **{variable: "hub.corp.example"})
    for name in ("NO_PROXY", "no_proxy"):
        assert {"hub.corp.example", "mlflow", "minio", "127.0.0.1"} <= set(given[name].split(","))
    assert "NO_PROXY" not in (await gateway.store.get("mine")).runtime_env["env_vars"].keys() - {variable}


@pytest.mark.usefixtures("secret")
async def test_account_secrets_and_grace_allow_warm_start(gateway: Gateway, tmp_path: Path) -> None:
    given = await variables_of(gateway)
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
