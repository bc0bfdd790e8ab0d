"""Loop nests to C-like text: one printer, and a table for each dialect (`dialect.Dialect`)."""
