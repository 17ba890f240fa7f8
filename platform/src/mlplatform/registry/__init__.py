"""Models and data sets by name."""
