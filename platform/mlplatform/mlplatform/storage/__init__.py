"""Durable storage, an S3 bucket or a folder: addresses, access, uploads, and the fence against replaced attempts."""
