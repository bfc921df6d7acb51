"""Exact greedy facility location on one set of tokens."""
