"""Files on this machine: walking, checksums, atomic folders, parallel transfer. Speaks to no service."""
