"""Models and data sets by name, on MLflow's registry and the object storage."""
