"""The functions of NVIDIA's driver over the emulator: memory is this process's, and a launch runs the kernel's LLVM IR
(`cuda_emulator`)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from support.cuda_emulator import Places, launch
from tilewright.codegen.gpu.launch import Launch
from tilewright.codegen.nvptx.emitter import Emitted


class EmulatedDriver:
    """`kernels`: what was emitted, by name. `failing` names a function that fails, `capability` is the GPU's."""

    def __init__(self, kernels: dict[str, Emitted], capability: tuple[int, int] = (8, 0), failing: str = "") -> None:
        self.kernels, self.capability, self.failing = kernels, capability, failing
        self.places = Places()
        self.names: list[str] = []
        self.launches: list[str] = []
        self.allocated = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name == object.__getattribute__(self, "failing"):
            return lambda *args: 2
        return object.__getattribute__(self, name)

    def cuInit(self, flags) -> int:
        return 0

    def cuDeviceGet(self, device, number) -> int:
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device) -> int:
        return 0

    def cuCtxSetCurrent(self, context) -> int:
        return 0

    def cuCtxSynchronize(self) -> int:
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device) -> int:
        value._obj.value = self.capability[attribute - 75]
        return 0

    def cuGetErrorString(self, code, text) -> int:
        text._obj.value = b"out of memory"
        return 0

    def cuMemAlloc_v2(self, address, size) -> int:
        self.allocated += 1
        name = f"memory {self.allocated}"
        address._obj.value = self.places.add(name, size.value, np.zeros(size.value, np.uint8))
        return 0

    def cuMemFree_v2(self, address) -> int:
        self.places.all = {n: p for n, p in self.places.all.items() if p[0] != address.value}
        return 0

    def cuMemcpyHtoD_v2(self, to, source, size) -> int:
        ctypes.memmove(to.value, source.value, size.value)
        return 0

    cuMemcpyDtoH_v2 = cuMemcpyDtoD_v2 = cuMemcpyHtoD_v2

    def cuModuleLoadData(self, module, ptx) -> int:
        assert b".visible .entry" in ptx.value
        return 0

    def cuModuleGetFunction(self, function, module, name) -> int:
        self.names.append(name.value.decode())
        function._obj.value = len(self.names)
        return 0

    def cuFuncSetAttribute(self, function, attribute, value) -> int:
        return 0

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra) -> int:
        name = self.names[function.value - 1]
        self.launches.append(name)
        args = [ctypes.c_uint64.from_address(p).value for p in params]
        launch(self.kernels[name].text, Launch((gx, gy, gz), (bx, by, bz)), name, self.places, args)
        return 0
