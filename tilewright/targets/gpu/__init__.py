"""What targets for GPUs share: the machine record, kernels as they lie in a package, and running them on a device.

A target adds a dialect (`codegen/clike`) or an emitter of its own, and a `device.Device`.
"""
