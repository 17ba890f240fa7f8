"""Messages to training workers about calls without effect."""

from __future__ import annotations

import pytest

from mlplatform.errors import JobError

pytestmark = pytest.mark.usefixtures("clean_environment")


def test_tune_report_in_worker_error_names_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray import tune
    from ray.tune.trainable import trainable_fn_utils

    from mlplatform.training import workers

    for module in (tune, trainable_fn_utils):
        monkeypatch.setattr(module, "report", module.report)  # restored after the test
    with pytest.warns(UserWarning, match="is meant to only be called"):
        tune.report({"loss": 1.0})
    workers._refuse_reports_to_tune.__wrapped__()
    with pytest.raises(JobError, match=r"call ray\.train\.report\(\) there"):
        tune.report({"loss": 1.0})
