"""Resources that jobs request, and those of nodes."""
