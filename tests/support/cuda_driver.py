"""The functions of NVIDIA's driver over the emulator: memory is this process's, a launch runs the kernel's LLVM IR
(`cuda_emulator`), a graph what was put into the stream while it captured."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from support.cuda_emulator import Places, launch
from support.cuda_tensor_maps import encode, told
from tilewright.codegen.gpu.launch import Launch
from tilewright.codegen.nvptx.emitter import NvptxKernel
from tilewright.program.package import Package
from tilewright.targets.cuda.device import CudaDevice, check
from tilewright.targets.cuda.driver import Driver
from tilewright.targets.cuda.stages import CudaKernel
from tilewright.targets.gpu.runner import GpuRunner

SAID = {2: b"out of memory", 700: b"an illegal memory access was encountered", 1: b"invalid argument"}


def runner(package: Package, driver: Callable[[], Driver]) -> GpuRunner:
    """A package over a driver, which is asked for when it first runs."""

    def device() -> CudaDevice:
        found = CudaDevice(driver())
        check(str(package.description["sm"]), *found.driver.capability())
        return found

    return GpuRunner(package, device, CudaKernel.from_bytes)


class EmulatedDriver:
    """`kernels`: what was emitted, by name. `failing` names a function that fails with `code`, `capability` is the
    GPU's, `gpus` are the names of those that there are."""

    def __init__(
        self,
        kernels: dict[str, NvptxKernel],
        capability: tuple[int, int] = (8, 0),
        failing: str = "",
        code: int = 2,
        gpus: tuple[str, ...] = ("an emulated GPU",),
    ) -> None:
        self.kernels, self.capability, self.failing, self.code, self.gpus = kernels, capability, failing, code, gpus
        self.places = Places()
        self.names: list[str] = []
        self.launches: list[str] = []
        self.calls: list[str] = []
        self.allocated = 0
        #: what is put into the stream while it captures, and graphs, events and pinned memory by number
        self.capturing: list[Callable[[], object]] | None = None
        self.graphs: dict[int, list[Callable[[], object]]] = {}
        self.events: dict[int, float] = {}
        self.pinned: dict[int, Any] = {}
        self.made = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu"):
            object.__getattribute__(self, "calls").append(name)
            if name == object.__getattribute__(self, "failing"):
                return lambda *args: object.__getattribute__(self, "code")
        return object.__getattribute__(self, name)

    def in_stream(self, action: Callable[[], object]) -> int:
        if self.capturing is not None:
            self.capturing.append(action)
        else:
            action()
        return 0

    def number(self, handle) -> int:
        """Give a new handle."""
        self.made += 1
        handle._obj.value = self.made
        return self.made

    def cuInit(self, flags) -> int:
        return 0

    def cuDriverGetVersion(self, version) -> int:
        version._obj.value = 12080
        return 0

    def cuDeviceGetCount(self, count) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def cuDeviceGet(self, device, number) -> int:
        device._obj.value = number
        return 0

    def cuDeviceGetName(self, text, size, device) -> int:
        text.value = self.gpus[device.value].encode()
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
        text._obj.value = SAID[code]
        return 0

    # ---- streams, graphs, events

    def cuStreamCreate(self, stream, flags) -> int:
        self.number(stream)
        return 0

    def cuStreamSynchronize(self, stream) -> int:
        assert self.capturing is None
        return 0

    def cuStreamBeginCapture_v2(self, stream, mode) -> int:
        assert self.capturing is None
        self.capturing = []
        return 0

    def cuStreamEndCapture(self, stream, graph) -> int:
        self.graphs[self.number(graph)] = self.capturing
        self.capturing = None
        return 0

    def cuGraphInstantiateWithFlags(self, made, graph, flags) -> int:
        self.graphs[self.number(made)] = self.graphs[graph.value]
        return 0

    def cuGraphDestroy(self, graph) -> int:
        del self.graphs[graph.value]
        return 0

    cuGraphExecDestroy = cuGraphDestroy

    def cuGraphLaunch(self, graph, stream) -> int:
        assert self.capturing is None
        for action in self.graphs[graph.value]:
            action()
        return 0

    def cuEventCreate(self, event, flags) -> int:
        self.events[self.number(event)] = 0.0
        return 0

    def cuEventDestroy_v2(self, event) -> int:
        del self.events[event.value]
        return 0

    def cuEventRecordWithFlags(self, event, stream, flags) -> int:
        assert flags == (self.capturing is not None)
        return self.in_stream(lambda: self.events.update({event.value: time.perf_counter()}))

    def cuEventElapsedTime(self, found, first, last) -> int:
        found._obj.value = 1e3 * (self.events[last.value] - self.events[first.value])
        return 0

    # ---- memory

    def cuMemGetInfo_v2(self, free, total) -> int:
        free._obj.value = total._obj.value = 1 << 30
        return 0

    def cuMemHostAlloc(self, address, size, flags) -> int:
        memory = (ctypes.c_ubyte * size.value)()
        address._obj.value = ctypes.addressof(memory)
        self.pinned[address._obj.value] = memory
        return 0

    def cuMemFreeHost(self, address) -> int:
        del self.pinned[address.value]
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

    cuMemcpyDtoH_v2 = cuMemcpyHtoD_v2

    def cuMemcpyHtoDAsync_v2(self, to, source, size, stream) -> int:
        return self.in_stream(lambda: ctypes.memmove(to.value, source.value, size.value))

    cuMemcpyDtoHAsync_v2 = cuMemcpyDtoDAsync_v2 = cuMemcpyHtoDAsync_v2

    def cuTensorMapEncodeTiled(self, found, dtype, rank, address, *rest) -> int:
        return encode(found, dtype, rank, address, *rest)

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
        args = told(params, self.kernels[name])
        return self.in_stream(lambda: self.run_kernel(name, Launch((gx, gy, gz), (bx, by, bz)), args))

    def run_kernel(self, name: str, grid: Launch, args: list[Any]) -> None:
        self.launches.append(name)
        launch(self.kernels[name].text, grid, name, self.places, args)
