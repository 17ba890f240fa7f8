"""Private names of other libraries, one module per library; each name is used here only."""
