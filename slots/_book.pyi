"""A kernel for kernels: it has no Python surface."""
