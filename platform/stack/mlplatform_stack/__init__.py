"""Verbs of the stack's operator on its host; imports neither ray nor mlflow nor torch."""
