"""Backup and restore of the stack's data, in the containers `backup` and `restore`; `verbs` runs them."""
