"""The embedded platform: Ray, MLflow and the gateway as processes of one user on one machine."""
