"""The embedded platform: Ray and MLflow as processes of one person on one machine."""
