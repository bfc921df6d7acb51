"""Hosts that FLoC works in, one folder each."""
