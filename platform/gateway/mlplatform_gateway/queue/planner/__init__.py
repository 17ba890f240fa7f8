"""Pure rules over nodes and requests: no I/O."""
