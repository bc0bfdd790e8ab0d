"""Several devices in one program (``opencl+cpu``, ``cuda:device=0+cuda:device=1``).

`target` is the combination as one target, `machine` what schedules of it may assume before kernels are placed, `stages`
lets each member compile its own kernels; `segments` cuts a program where devices change, `runner` runs it, with `memory`
on each device and `states` wherever they lie.
"""
