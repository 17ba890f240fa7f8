"""The Ray head behind the gateway."""
