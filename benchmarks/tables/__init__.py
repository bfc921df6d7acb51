"""One module for each table that `python -m benchmarks` measures."""
