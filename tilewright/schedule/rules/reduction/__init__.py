"""Reductions that are no sums of products."""
