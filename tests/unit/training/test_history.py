import json
from pathlib import Path

import pytest

from mlplatform.files.atomic import DRAFT
from mlplatform.settings import job
from mlplatform.storage import addresses
from mlplatform.training.history import FOLDER, HistorySink, history


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a training's reports, in which a kill has left the draft of a file."""
    monkeypatch.setenv("MLPLATFORM_STORAGE", str(tmp_path))
    monkeypatch.setenv("MLPLATFORM_JOB_ID", "digits")
    job.settings.cache_clear()
    folder = Path(addresses.checkpoint_uri("fit")) / FOLDER
    folder.mkdir(parents=True)
    (folder / f"{DRAFT}abc").write_text('{"training_iteration": 7, "loss')
    (folder / "00000.jsonl").write_text(json.dumps({"training_iteration": 1, "loss": 0.5}) + "\n")
    return folder


@pytest.mark.usefixtures("reports")
def test_draft_left_by_a_kill_is_not_read() -> None:
    assert [report["loss"] for report in history("fit")] == [0.5]


def test_draft_left_by_a_kill_takes_no_number(reports: Path) -> None:
    sink = HistorySink(str(reports.parent))
    sink.open()
    sink.send([{"training_iteration": 2, "loss": 0.25}])
    assert sorted(path.name for path in reports.glob("*.jsonl")) == ["00000.jsonl", "00001.jsonl"]
