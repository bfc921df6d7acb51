"""Streams: compression of video while it is being received."""
