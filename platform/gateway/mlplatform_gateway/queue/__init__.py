"""The queue: its planner, its picture of jobs and nodes, and its routes."""
