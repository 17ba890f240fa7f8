"""Secrets: their files, and credentials of services read from them."""
