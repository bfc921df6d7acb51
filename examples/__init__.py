"""Short programs that use floc."""
