"""Warm start: processes that are forked from a template with the common imports loaded, instead of started.

`client` replaces `python` for a program, `template` is forked, `program` becomes the program in the forked process,
and `conditions` decides whether a program may start warm. The package uses the standard library only.
"""
