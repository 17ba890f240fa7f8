"""The reference to a job's run, in a real folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mlplatform.errors import FencedError
from mlplatform.storage import run_reference
from mlplatform.storage.run_reference import RunReference

RUN = RunReference("http://mlflow:8000", "0123456789abcdef0123456789abcdef")


@pytest.mark.usefixtures("become")
def test_reference_belongs_to_one_job() -> None:
    assert run_reference.read("steps") is None
    run_reference.write("steps", RUN)
    assert run_reference.read("steps") == RUN
    assert run_reference.read("other") is None


def test_replaced_attempt_stores_no_reference(replace: Callable[[], None]) -> None:
    run_reference.write("steps", RUN)
    replace()
    with pytest.raises(FencedError):
        run_reference.write("steps", RunReference("http://mlflow:8000", "of the replaced attempt"))
    assert run_reference.read("steps") == RUN


@pytest.mark.usefixtures("become")
@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"run_id": "0"}'])
def test_damaged_reference_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "storage" / "steps" / run_reference.NAME
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(ValueError, match=r"steps/\.mlflow-run holds .* delete it"):
        run_reference.read("steps")
