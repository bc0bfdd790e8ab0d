"""The pipeline, and what is built around it: caches, processes, specialization, verification, kernels alone."""
