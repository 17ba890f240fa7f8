"""Removal of what nobody needs any more."""
