"""Scheduling rules for GPUs: machines with a grid of thread blocks, whose threads share a memory. Kernels that none of
them takes are scheduled by the general rules, as parallel loops distributed over all threads."""
