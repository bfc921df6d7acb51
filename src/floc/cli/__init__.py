"""The command line. One file a command, named as the command."""

from importlib import import_module

from floc.cli.application import app, main

__all__ = ["app", "main"]

for _command in ("compress", "ask", "stream", "eval", "methods"):  # in the order of `floc --help`
    import_module(f"floc.cli.{_command}")
