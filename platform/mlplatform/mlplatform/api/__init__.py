"""Models of the gateway's HTTP interface, each declared once, for routes, clients, `--json` and description.

Laptops import them, so that they need pydantic only.
"""
