"""Functions that several methods use. No file here is a method."""
