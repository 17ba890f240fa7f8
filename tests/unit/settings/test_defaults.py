"""One default per setting: `.env.example`, the compose files and the settings' models agree."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from mlplatform.settings.gateway import GatewaySettings
from mlplatform.settings.job import Settings
from mlplatform.settings.node import NodeSettings
from mlplatform.settings.stack import StackSettings
from mlplatform.settings.storage import StorageSettings

CHECKOUT = Path(__file__).parents[3]

DEFAULT = re.compile(r"\$\{([A-Z0-9_]+):?-([^}]*)\}")
"""`${NAME:-default}` and `${NAME-default}` of Compose."""

ONLY_OF_COMPOSE = {"COMPOSE_PROFILES"}
"""The example starts every service; without this variable, Compose starts only services without a profile."""


MODELS = (Settings, GatewaySettings, NodeSettings, StorageSettings)
"""Settings that containers read."""


def example() -> dict[str, str]:
    lines = (CHECKOUT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def compose_files() -> list[Path]:
    return sorted((CHECKOUT / "compose").glob("*.yaml"))


def defaults_of_compose() -> dict[str, set[str]]:
    """Defaults of each variable in the compose files."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in compose_files():
        for name, default in DEFAULT.findall(path.read_text()):
            found[name].add(default)
    return dict(found)


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


def test_compose_defaults_equal_env_example() -> None:
    # An empty value in the example leaves the choice to Compose; it differs by accelerator.
    given = {name: value for name, value in example().items() if value}
    found = {name: values for name, values in defaults_of_compose().items() if name in given}
    assert len(found) > 20
    assert found == {name: {given[name]} for name in found}


def test_each_setting_belongs_to_host_or_to_stack() -> None:
    classes = {str(field.validation_alias): field.json_schema_extra for field in StackSettings.model_fields.values()}
    assert classes.keys() == example().keys()
    assert all(found in ({"of_host": True}, {"of_host": False}) for found in classes.values()), classes
    assert {"WORKER_MEMORY", "RAY_PORT", "BACKUP_TO"} < StackSettings.of_host()
    assert not {"GRACE_SECONDS", "BACKUP_EVERY_HOURS", "BUCKET_QUOTAS"} & StackSettings.of_host()


def test_each_variable_of_env_example_is_used() -> None:
    compose = " ".join(path.read_text() for path in compose_files())
    unused = {name for name in example() if not re.search(rf"\$\{{{name}\b", compose)}
    code = " ".join(path.read_text() for path in (CHECKOUT / "platform/src/mlplatform/stack").rglob("*.py"))
    names = {str(field.validation_alias): name for name, field in StackSettings.model_fields.items()}
    assert {name for name in unused if f".{names[name]}" not in code} == set()


def test_stack_settings_defaults_equal_env_example() -> None:
    given = example()
    found = {name: str(value) for name, value in defaults(StackSettings).items() if name not in ONLY_OF_COMPOSE}
    assert found == {name: given[name] for name in found}


def test_each_container_variable_has_settings_field() -> None:
    fields = [field for model in MODELS for field in model.model_fields.values()]
    read = {str(field.validation_alias) for field in fields}
    assert {name for name, _ in environments() if name.startswith("MLPLATFORM_")} <= read


@pytest.mark.parametrize("model", [Settings, GatewaySettings, StorageSettings])
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
