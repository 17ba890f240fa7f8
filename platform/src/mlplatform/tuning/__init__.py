"""Ray Tune wired to the job: one child run per trial, ASHA by default, and searches that survive their driver."""

from mlplatform.tuning.callback import TrialCallback
from mlplatform.tuning.search import best, run_config, trial_config, trial_folder, tuner

# `TrialCallback` and `trial_folder` are public because a search of version 0.1.0 refers to them here in its
# `tuner.pkl`.
__all__ = ["TrialCallback", "best", "run_config", "trial_config", "trial_folder", "tuner"]
