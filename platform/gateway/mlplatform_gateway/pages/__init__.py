"""The platform's front page, rendered on the server."""
