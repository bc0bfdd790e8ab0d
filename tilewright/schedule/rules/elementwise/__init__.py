"""Elementwise operations, data movement, chains that run row by row, and what always applies."""
