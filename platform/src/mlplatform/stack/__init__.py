"""Verbs of a person who operates the stack on its host; imports neither ray nor mlflow nor torch."""
