"""What several methods share. No file here is a method."""
