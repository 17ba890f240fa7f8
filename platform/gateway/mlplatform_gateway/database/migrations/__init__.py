"""Alembic migrations of the gateway's database."""
