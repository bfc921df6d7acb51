"""The CPU backend, compiled by numba."""
