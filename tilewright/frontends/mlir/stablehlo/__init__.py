"""StableHLO becomes level 2: `importer` walks over it, one function an operator imports that; see `registry`."""
