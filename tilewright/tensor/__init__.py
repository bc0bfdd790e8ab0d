"""Level 3: linalg on tensors. Lowering of operators, fusion into kernels, and kernels read as stages for the
scheduler."""
