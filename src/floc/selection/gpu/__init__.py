"""The maths of sets of tokens as Triton kernels."""
