"""Targets: each folder here turns loop nests into code for one kind of machine. Nothing outside names one of them."""
