"""Exact greedy facility location on one set of tokens."""

from floc.selection.select import Selection, select

__all__ = ["Selection", "select"]
