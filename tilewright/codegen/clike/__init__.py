"""Loop nests to source code in C, OpenCL C, HIP, Metal or WGSL: one printer, and a table for each language
(`dialect.Dialect`)."""
