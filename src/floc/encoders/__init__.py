"""Encoders turn the frames of a video into tokens."""

from floc.encoders.base import Encoder, encode, get, get_layout, list_encoders, resolve_name

__all__ = ["Encoder", "encode", "get", "get_layout", "list_encoders", "resolve_name"]
