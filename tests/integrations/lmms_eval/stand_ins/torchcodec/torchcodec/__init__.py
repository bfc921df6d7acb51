"""In place of torchcodec, which needs libraries of FFmpeg that a machine may not have: frames come from PyAV."""

__version__ = "0.0"
