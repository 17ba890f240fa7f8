"""MLflow tracking: one run per job."""
