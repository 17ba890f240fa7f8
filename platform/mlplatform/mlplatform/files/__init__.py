"""Files on this machine: walking, checksums, atomic writes, parallel transfer. Talks to no service."""
