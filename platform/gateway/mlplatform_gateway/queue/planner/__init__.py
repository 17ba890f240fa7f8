"""Pure rules over nodes and requests, shared by the client and the gateway: no I/O."""
