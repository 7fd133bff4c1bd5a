"""The command line. Text goes to stdout, talk to stderr; importing this loads no tensor library."""

from nsd.cli.main import main

__all__ = ["main"]
