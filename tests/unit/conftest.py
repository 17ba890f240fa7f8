import pytest


@pytest.fixture(autouse=True)
def clean(clean_environment: None) -> None:
    """Start every unit test without settings of the shell or of the previous test."""
