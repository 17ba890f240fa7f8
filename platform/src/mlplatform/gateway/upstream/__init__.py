"""Clients of the services behind the gateway: Ray's head and MLflow."""
