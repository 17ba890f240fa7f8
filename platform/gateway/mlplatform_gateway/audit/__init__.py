"""Audit log of the gateway: who did what, from where, in rows that are only added."""
