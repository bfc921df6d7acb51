"""A film with a known answer, and which methods keep it."""
