"""Registered models: the digests of their files, as they were when the gateway first saw each version."""
