"""Jobs as the gateway stores them: submission, states, tables, packages."""
