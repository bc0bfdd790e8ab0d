"""Operators with loop nests of their own, built by hand."""
