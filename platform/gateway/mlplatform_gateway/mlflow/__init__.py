"""MLflow: what the gateway asks it, accounts and digests, and the parts of its server that are ours."""
