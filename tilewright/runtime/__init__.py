"""Running compiled programs: executables, arrays in and out, reports. Free of MLIR."""
