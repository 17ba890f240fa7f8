"""Control loop of the gateway: starts jobs, watches attempts, restarts lost ones."""
