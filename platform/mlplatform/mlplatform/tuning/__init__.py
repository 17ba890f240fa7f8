"""Ray Tune wired to the job: one child run per trial, ASHA by default, and searches that survive their driver."""

from mlplatform.tuning.search import best, run_config, trial_config, tuner

__all__ = ["best", "run_config", "trial_config", "tuner"]
