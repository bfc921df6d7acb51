"""The GPU backend: Triton kernels for similarity matrices, greedy selection and clusters."""
