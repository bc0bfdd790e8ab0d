"""Languages that kernels are written in."""
