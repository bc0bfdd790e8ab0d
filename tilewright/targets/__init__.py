"""Targets (back ends): each folder here compiles loop nests for one kind of machine. Nothing outside names one of
them."""
