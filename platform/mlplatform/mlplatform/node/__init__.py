"""Programs and hooks of a Ray node."""
