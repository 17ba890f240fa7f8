"""Submission and following of jobs from any machine; imports neither ray nor mlflow nor torch."""
