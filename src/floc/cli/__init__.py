"""The command line. One file a command, named as the command."""

from importlib import import_module

from floc.cli.application import app, main

__all__ = ["app", "main"]

# in the order of `floc --help`
for _command in ("compress", "compare", "ask", "stream", "ingest", "store", "methods", "eval"):
    import_module(f"floc.cli.{_command}")
