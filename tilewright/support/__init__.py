"""Utilities for all packages: options, errors, element types, files, memory, processes; none is about compiling."""
