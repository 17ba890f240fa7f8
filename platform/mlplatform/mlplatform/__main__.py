"""`python -m mlplatform` is the command line too."""

from mlplatform.cli.app import main

main()
