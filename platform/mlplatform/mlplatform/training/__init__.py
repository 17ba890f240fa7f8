"""Ray Train wired to the job: checkpoints, restarts, and reports to MLflow."""
