"""Logs of jobs: shipped from the nodes, stored in the object store, served to readers."""
