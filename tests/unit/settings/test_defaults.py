"""One name and one default per setting: its field has both, and nothing else declares them again."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from mlplatform.errors import SettingsError
from mlplatform.settings.job import NodeSettings, Settings
from mlplatform.settings.services import ObjectStore, OfGateway
from mlplatform_gateway.settings import GatewaySettings, MlflowServerSettings
from mlplatform_stack.settings import StackSettings, StorageSettings

CHECKOUT = Path(__file__).parents[3]

DEFAULT = re.compile(r"\$\{([A-Z0-9_]+):?-([^}]*)\}")
"""`${NAME:-default}` and `${NAME-default}` of Compose."""

MODELS = (Settings, GatewaySettings, MlflowServerSettings, NodeSettings, StorageSettings)
"""Settings that containers read."""


def example() -> dict[str, str]:
    lines = (CHECKOUT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def compose_files() -> list[Path]:
    return sorted((CHECKOUT / "compose").rglob("*.yaml"))


def environments() -> Iterator[tuple[str, str]]:
    """Environment of each container, with Compose's defaults substituted."""
    for path in compose_files():
        for service in (yaml.safe_load(path.read_text()).get("services") or {}).values():
            variables = service.get("environment") or {}
            for name, value in variables.items() if isinstance(variables, dict) else ():
                yield name, DEFAULT.sub(r"\2", str(value))


def defaults(model: type[BaseSettings]) -> dict[str, Any]:
    """A model's defaults by variable, except computed defaults and those that mean unset."""
    fields = [field for field in model.model_fields.values() if not field.is_required() and not field.default_factory]
    known = {str(field.validation_alias): field.get_default() for field in fields}
    return {variable: default for variable, default in known.items() if default is not None}


def test_each_setting_belongs_to_host_or_to_stack() -> None:
    classes = {str(field.validation_alias): field.json_schema_extra for field in StackSettings.model_fields.values()}
    assert classes.keys() == example().keys()
    assert all(found in ({"of_host": True}, {"of_host": False}) for found in classes.values()), classes
    assert {"WORKER_MEMORY", "RAY_PORT", "BACKUP_TO"} < StackSettings.of_host()
    assert not {"GRACE_SECONDS", "BACKUP_EVERY_HOURS", "BUCKET_QUOTAS"} & StackSettings.of_host()


def test_each_setting_is_used() -> None:
    compose = " ".join(path.read_text() for path in compose_files())
    unused = {name for name in StackSettings.variables() if not re.search(rf"\$\{{{name}\b|^ +{name}:$", compose, re.M)}
    folders = (CHECKOUT / "platform" / name for name in ("stack", "gateway"))
    code = " ".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    assert {name for name in unused if f".{name.lower()}" not in code} == set()


def test_compose_files_leave_defaults_to_fields() -> None:
    ours = StackSettings.defaults()
    texts = {path.name: path.read_text() for path in compose_files()}
    again = {
        name: {found for found, default in DEFAULT.findall(text) if default == ours.get(found)}
        for name, text in texts.items()
    }
    assert {name: found for name, found in again.items() if found} == {}


def test_example_is_written_from_fields(tmp_path: Path) -> None:
    program, file = (sys.executable, CHECKOUT / "platform/env_example.py"), tmp_path / ".env.example"
    shutil.copy(CHECKOUT / ".env.example", file)
    assert subprocess.run([*program, file, "--check"], check=False).returncode == 0, "run `make format`"
    file.write_text(file.read_text().replace("GRACE_SECONDS=120", "GRACE_SECONDS=60"))
    done = subprocess.run([*program, file, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        f"{file} differs from the fields of the settings: run `make format`.\n",
    )
    subprocess.run([*program, file], check=True)
    assert file.read_text() == (CHECKOUT / ".env.example").read_text()


def test_empty_settings_have_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OfGateway.variables():
        monkeypatch.delenv(name, raising=False)
    unset = GatewaySettings.load()
    for name in OfGateway.variables():
        monkeypatch.setenv(name, "")
    assert GatewaySettings.load() == unset
    assert (unset.grace_seconds, unset.mail_tls, unset.runs_keep_days) == (120, "required", None)


def test_gateway_names_variable_of_env_and_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRACE_SECONDS", "soon")
    monkeypatch.setenv("MAIL_SERVER", "smtp.example.org")
    with pytest.raises(SettingsError) as error:
        GatewaySettings.load()
    assert "GRACE_SECONDS='soon'" in str(error.value)
    assert "MAIL_SERVER='smtp.example.org'" in str(error.value)


def test_one_shot_gets_every_setting_of_object_store() -> None:
    services = yaml.safe_load((CHECKOUT / "compose/storage.yaml").read_text())["services"]
    assert ObjectStore.variables() <= services["storage-init"]["environment"].keys()


def test_each_container_variable_has_settings_field() -> None:
    fields = [field for model in MODELS for field in model.model_fields.values()]
    read = {str(field.validation_alias) for field in fields}
    assert {name for name, _ in environments() if name.startswith("MLPLATFORM_")} <= read


@pytest.mark.parametrize("model", [Settings, GatewaySettings])
def test_container_defaults_equal_code_defaults(model: type[BaseSettings]) -> None:
    ours = {name: value for name, value in defaults(model).items() if name.startswith("MLPLATFORM_")}
    found = {name: value for name, value in environments() if name in ours and name != "MLPLATFORM_HOME"}
    assert found
    assert found == {name: _in_compose(ours[name]) for name in found}


def _in_compose(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_laptop_default_equals_published_gateway_port() -> None:
    given = example()
    assert defaults(Settings)["RAY_ADDRESS"] == f"http://127.0.0.1:{given['RAY_PORT']}"
