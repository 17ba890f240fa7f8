"""Names of models, which need no server."""

import pytest

from mlplatform.errors import RegistryError
from mlplatform.registry import lookup


@pytest.mark.parametrize(
    "model", ["digits", "digits@", "@champion", "digits/3/4", "digits/latest", "models:/m-123", ""]
)
def test_model_name_requires_alias_or_version(model: str) -> None:
    with pytest.raises(RegistryError, match="neither name@alias nor name/version"):
        lookup.parts(model)


def test_model_uri_is_accepted_as_name() -> None:
    assert lookup.parts("models:/digits@champion") == lookup.parts("digits@champion")
    assert lookup.parts("models:/digits/3") == ("digits", "/", "3")
