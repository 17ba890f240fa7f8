"""The gateway's database."""
