"""The platform's front page: nodes, GPUs, jobs and services at a glance, rendered on the server."""
