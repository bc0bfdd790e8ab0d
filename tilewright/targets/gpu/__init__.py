"""Shared by GPU targets: the machine record, how kernels are stored in a package, and the runtime on a device.

A target adds a dialect (`codegen/clike`) or an emitter of its own, and a `device.Device`.
"""
