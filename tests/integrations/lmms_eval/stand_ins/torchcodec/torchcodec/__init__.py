"""Substitute for torchcodec, which needs FFmpeg libraries. It decodes with PyAV."""

__version__ = "0.0"
