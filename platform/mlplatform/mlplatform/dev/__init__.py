"""Work inside a running job, from another machine."""
