"""Lists of registered models that span several pages of MLflow's client."""

from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.store.entities import PagedList

from mlplatform.errors import RegistryError
from mlplatform.registry import lookup, models

pytestmark = pytest.mark.usefixtures("clean_environment")


class Pages:
    """A registry with more models than the server returns per page."""

    def __init__(self, names: list[str], size: int) -> None:
        self.names, self.size = names, size

    def search_registered_models(self, filter_string: str = "", page_token: str | None = None) -> PagedList[Any]:
        if filter_string:
            return PagedList([], None)
        first = int(page_token or 0)
        last = first + self.size
        page = [SimpleNamespace(name=name, aliases={}) for name in self.names[first:last]]
        return PagedList(page, str(last) if last < len(self.names) else None)

    def search_model_versions(self, *_: Any, **__: Any) -> list[Any]:
        return []


def test_models_on_all_pages_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"model-{number}" for number in range(5)]
    for module in (lookup, models):
        monkeypatch.setattr(module, "client", lambda: Pages(names, 2))
    assert [name for name, _, _ in models.models()] == names
    with pytest.raises(RegistryError, match=f"no model 'digits'; there are: {', '.join(names)}"):
        lookup.resolve("digits@champion")
