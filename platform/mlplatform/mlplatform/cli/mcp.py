"""`mlplatform mcp`: a server of the Model Context Protocol, through which programs such as agents use the platform."""

from __future__ import annotations


def mcp() -> None:
    """Serve tools of the Model Context Protocol over stdin and stdout, with the rights of your token.

    An agent or an editor starts this command. Its configuration has to pass on variables that you need, such as
    RAY_ADDRESS. Needs the extra mlplatform[mcp].
    """
    from mlplatform.cli import tools

    tools.serve()
