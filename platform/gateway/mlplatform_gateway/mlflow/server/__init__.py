"""Plugins of the stack's MLflow server."""
