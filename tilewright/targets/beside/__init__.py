"""What targets of a host and another processor have in common: `stages` lets the host compile its own kernels, `parts`
cuts a program where the other processor begins and ends, `runner` runs the two in turns on the same memory."""
