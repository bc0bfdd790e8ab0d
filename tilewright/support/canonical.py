"""MLIR's pass `canonicalize`, without the patterns of it that change numbers."""

from __future__ import annotations

#: they round once what the program rounds twice, an integer to f64 and then to fewer bits
_PATTERNS = ("TruncFSIToFPToSIToFP", "TruncFUIToFPToUIToFP")
#: what GCC and Clang call the namespace that they are in
_NAMES = ",".join(f"{space}::{name}" for space in ("{anonymous}", "(anonymous namespace)") for name in _PATTERNS)
#: the pass as text, with its options
CANONICALIZE = f"canonicalize{{disable-patterns={{{_NAMES}}}}}"
