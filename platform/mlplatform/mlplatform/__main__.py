"""`python -m mlplatform` is the command line too."""

from mlplatform.cli import main

main()
