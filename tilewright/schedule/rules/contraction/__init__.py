"""Sums of products (matrix products, convolutions as such): tiles in registers."""
