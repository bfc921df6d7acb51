"""Ingest many videos into an archive."""
