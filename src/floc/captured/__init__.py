"""Compressed videos prepared for a model; independent of the host that runs the model."""
