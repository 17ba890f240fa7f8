"""Messages to training workers about calls without effect."""

from __future__ import annotations

import pytest

from mlplatform.errors import JobError

pytestmark = pytest.mark.usefixtures("clean_environment")


def test_tune_report_in_worker_error_names_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray import tune
    from ray.air import session
    from ray.train._internal import session as train_session
    from ray.tune.trainable import trainable_fn_utils

    from mlplatform.compat.ray_train import around_reports_without_effect
    from mlplatform.training import workers

    for module in (tune, trainable_fn_utils, session, train_session):
        monkeypatch.setattr(module, "report", module.report)  # restored after the test
    with pytest.warns(UserWarning, match="is meant to only be called"):
        tune.report({"loss": 1.0})
    around_reports_without_effect(workers._warn_and_report, workers._refuse_report)
    with pytest.raises(JobError, match=r"call ray\.train\.report\(\) there"):
        tune.report({"loss": 1.0})
