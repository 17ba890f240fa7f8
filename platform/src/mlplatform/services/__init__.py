"""Programs that the stack's other containers start: one-shots and the MLflow server's application."""
