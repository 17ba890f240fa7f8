"""Hosts that join the stack over WireGuard."""
