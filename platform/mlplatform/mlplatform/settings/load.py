"""Loading of settings from the environment, with errors that name every invalid variable."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from mlplatform.errors import SettingsError

_Model = TypeVar("_Model", bound=BaseSettings)


class EnvironmentSettings(BaseSettings):
    """Base of settings that are read from the environment."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, env_ignore_empty=True)

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the environment; `overrides` are fields by name.

        Raises:
            SettingsError: a variable has an invalid value; the message names all of them.
        """
        return load_settings(cls, overrides)


def label_selector(label: str | None) -> dict[str, str]:
    """Return a `key=value` label as a Ray label selector; empty without a label."""
    key, _, value = (label or "").partition("=")
    return {key: value} if key else {}


def load_settings(model: type[_Model], values: dict[str, Any]) -> _Model:
    """Read a model from the environment and `values`, which are named by field; raises SettingsError."""
    # Overrides come by field name but are passed by variable: if the model knew its fields by name too, it would also
    # read HOME and USER from the environment for `home` and `user`.
    fields = model.model_fields
    named = {str(fields[name].validation_alias) if name in fields else name: value for name, value in values.items()}
    try:
        return model(**named)
    except ValidationError as error:
        raise SettingsError("\n".join(map(_sentence, error.errors()))) from error


def _sentence(problem: ErrorDetails) -> str:
    name = ".".join(map(str, problem["loc"])) or "The settings"
    # The input of a missing one is everything that was read.
    return f"{name} is not set." if problem["type"] == "missing" else f"{name}={problem['input']!r}: {problem['msg']}"
