"""The command line: one module per noun; `app` has them all."""
