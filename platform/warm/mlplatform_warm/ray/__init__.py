"""Warm start of Ray's workers."""
