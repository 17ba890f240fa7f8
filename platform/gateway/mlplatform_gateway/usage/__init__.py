"""Ledger of the resources that attempts reserve, and its sums per person, team and job."""
