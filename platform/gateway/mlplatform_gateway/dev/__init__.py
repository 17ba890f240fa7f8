"""Work inside running jobs."""
