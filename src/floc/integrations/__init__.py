"""Hosts that FLoC works in: one folder or file each."""
