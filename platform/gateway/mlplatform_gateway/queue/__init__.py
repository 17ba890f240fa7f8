"""The queue: its planner, what it knows of jobs and nodes, and its routes."""
