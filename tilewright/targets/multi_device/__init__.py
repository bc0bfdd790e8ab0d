"""Heterogeneous execution: one program on several devices (``opencl+cpu``, ``cuda:device=0+cuda:device=1``).

`target` is the combination as one target, `machine` what passes may assume before kernels are placed; by `stages` each
member compiles its own kernels. `segments` cuts a program where devices change, `runner` runs it with what each device
has in its `memory`, `states` lie where they are used, and `timing` puts all clocks on one line. A host with a
coprocessor in its memory (`beside`: ``cpu+systolic32``, `tw.offload`) is compiled, cut and run by the same.
"""
