"""Streams: video that is still going on."""
