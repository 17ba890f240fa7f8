from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def clean(clean_environment: None) -> None:
    """Every test starts without the settings of its shell or of the test before."""
