"""People at the gateway: the sessions of their browsers."""
