from embedded import SCRIPTS, succeeded

from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings


def test_next_trial_waits_for_slow_end_of_stopped_one(reached: Settings) -> None:
    with Jobs(reached) as jobs:
        job = jobs.submit("python stops_late.py", SCRIPTS)
        log = succeeded(jobs, job)
    assert "errors: 0, scores: [1, 2]" in log, log
