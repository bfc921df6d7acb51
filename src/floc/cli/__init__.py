"""The command line: parse, call, print. Results go to stdout, everything else to stderr. A file for each command."""

from importlib import import_module

from floc.cli.shell import app, main

__all__ = ["app", "main"]

# in the order of `floc --help`
for _name in ("compress", "compare", "ask", "stream", "ingest", "store", "methods", "evaluate"):
    import_module(f".{_name}", __name__)
