"""Notebooks of people on this host."""
