"""The program of a model: its ordered kernel calls, the plan of its memory, and the package file. Free of MLIR."""
