"""Private names of other libraries, each with the version seen and the reason."""
