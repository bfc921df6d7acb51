"""Render a film with keys in it for a second, and find out which methods keep them."""
