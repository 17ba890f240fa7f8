"""One-shot services: databases, buckets, accounts, owners of volumes."""
