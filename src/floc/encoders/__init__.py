"""Encoders turn the frames of a video into tokens."""

from floc.encoders.base import (
    Encoder,
    Layout,
    VideoTokens,
    default_device,
    encode,
    get,
    group_frames,
    layout,
    names,
    resolve_name,
)

__all__ = [
    "Encoder",
    "Layout",
    "VideoTokens",
    "default_device",
    "encode",
    "get",
    "group_frames",
    "layout",
    "names",
    "resolve_name",
]
