"""Shared by targets of a host and a coprocessor (accelerators, `tw.offload`): `stages` compiles the host's kernels,
`parts` cuts a program into calls of each, `runner` runs the two in turns on the same memory."""
