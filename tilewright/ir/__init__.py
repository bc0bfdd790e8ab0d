"""The foundation of levels 2 and 3: MLIR context, types, the operator protocol, graphs and builders."""
