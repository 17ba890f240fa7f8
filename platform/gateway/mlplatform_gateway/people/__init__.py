"""People at the gateway: teams, tokens, sessions of their browsers, and who may do what."""
