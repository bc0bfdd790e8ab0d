"""ctypes bindings of the CUDA driver API: memory, modules, streams, graphs and events. Failures are a `DriverFailed`
with the driver's message, which `device.py` turns into our errors."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ...support.errors import PackageError

_NAMES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
#: what the driver calls the attributes that are asked for
_MOST_DYNAMIC_SHARED = 8
_MAJOR, _MINOR = 75, 76
#: flags: a stream that waits for no other; a capture during which memory may be freed; an event in a graph
_NON_BLOCKING, _RELAXED, _EXTERNAL = 1, 2, 1


class DriverFailed(Exception):
    """A function of the driver that gave an error code, in its words."""

    def __init__(self, name: str, code: int, said: str) -> None:
        super().__init__(f"{name}: {said}")
        self.name, self.code = name, code


def library() -> ctypes.CDLL:
    """The driver's functions; PackageError where there is no driver."""
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise PackageError(
        "running this code needs NVIDIA's driver, and none was found",
        stage="run",
        hint=f"install the driver of the GPU ({_NAMES[0]}), or compile for another target",
    )


def names(functions: ctypes.CDLL | None = None) -> list[str]:
    """What this machine's GPUs are called, by number; PackageError where there is no driver."""
    api = Functions(functions)
    count = ctypes.c_int()
    try:
        api.call("cuInit", 0)
        api.call("cuDeviceGetCount", ctypes.byref(count))
        return [_name(api, number) for number in range(count.value)]
    except DriverFailed as e:
        raise PackageError(f"NVIDIA's driver finds no GPU: {e}", stage="run", hint="`nvidia-smi` says more") from None


def _name(api: Functions, number: int) -> str:
    device, text = ctypes.c_int(), ctypes.create_string_buffer(256)
    api.call("cuDeviceGet", ctypes.byref(device), number)
    api.call("cuDeviceGetName", text, len(text), device)
    return text.value.decode()


class Functions:
    """The driver's functions, or what stands for them."""

    def __init__(self, functions: ctypes.CDLL | None = None) -> None:
        self.functions = functions if functions is not None else library()

    def call(self, name: str, *args: object) -> None:
        """Call a function; DriverFailed with what the driver says where it fails."""
        code = getattr(self.functions, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self.functions.cuGetErrorString(code, ctypes.byref(text))
            raise DriverFailed(name, code, (text.value or b"").decode() or f"error {code}")


class Driver(Functions):
    """A GPU of this machine, by its number, with its primary context and a stream for all that runs."""

    def __init__(self, functions: ctypes.CDLL | None = None, number: int = 0) -> None:
        super().__init__(functions)
        device, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        try:
            self.call("cuInit", 0)
            self.name = _name(self, number)
            self.call("cuDeviceGet", ctypes.byref(device), number)
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.device, self.context = device, context
            self.enter()
            self.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        except DriverFailed as e:
            raise PackageError(
                f"GPU {number} cannot be used: {e}", stage="run", hint="`nvidia-smi` says more"
            ) from None
        self.stream = stream

    def enter(self) -> None:
        """Make this the context of the thread that calls."""
        self.call("cuCtxSetCurrent", self.context)

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def capability(self) -> tuple[int, int]:
        """The generation of the GPU: (8, 0) for sm_80."""
        return self.attribute(_MAJOR), self.attribute(_MINOR)

    def version(self) -> str:
        """The version of CUDA that the driver knows."""
        value = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(value))
        return f"{value.value // 1000}.{value.value % 1000 // 10}"

    def free_bytes(self) -> int:
        """Bytes that are not in use."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    # ---- memory

    def allocate(self, size: int) -> int:
        """The address of so many bytes."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def pinned(self, size: int) -> int:
        """The address of memory of the host that the GPU reads and writes by itself."""
        address = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(max(size, 1)), 0)
        return address.value or 0

    def free_pinned(self, address: int) -> None:
        self.call("cuMemFreeHost", ctypes.c_void_p(address))

    def to_device(self, to: int, source: int, size: int) -> None:
        """Copy now. The driver may come back before all has arrived."""
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(to), ctypes.c_void_p(source), ctypes.c_size_t(size))

    def to_host(self, to: int, source: int, size: int) -> None:
        self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(to), ctypes.c_uint64(source), ctypes.c_size_t(size))

    # ---- in the stream: what begins when all before it is done

    def upload(self, to: int, pinned: int, size: int) -> None:
        to_, from_ = ctypes.c_uint64(to), ctypes.c_void_p(pinned)
        self.call("cuMemcpyHtoDAsync_v2", to_, from_, ctypes.c_size_t(size), self.stream)

    def fetch(self, pinned: int, source: int, size: int) -> None:
        to_, from_ = ctypes.c_void_p(pinned), ctypes.c_uint64(source)
        self.call("cuMemcpyDtoHAsync_v2", to_, from_, ctypes.c_size_t(size), self.stream)

    def copy(self, to: int, source: int, size: int) -> None:
        if size:
            to_, from_ = ctypes.c_uint64(to), ctypes.c_uint64(source)
            self.call("cuMemcpyDtoDAsync_v2", to_, from_, ctypes.c_size_t(size), self.stream)

    def stamp(self, event: ctypes.c_void_p) -> None:
        """The time when this is reached; in a graph each launch writes it anew."""
        self.call("cuEventRecordWithFlags", event, self.stream, _EXTERNAL)

    # ---- code

    def load(self, ptx: str, name: str, shared: int) -> ctypes.c_void_p:
        """A kernel of a module, which may be given `shared` bytes at launch."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx.encode()))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
        if shared:
            self.call("cuFuncSetAttribute", function, _MOST_DYNAMIC_SHARED, shared)
        return function

    def launch(
        self,
        function: ctypes.c_void_p,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        args: Sequence[Any],
    ) -> None:
        """Begin a kernel on addresses, and on what is given by its bytes (`tensor_maps`), in the stream."""
        values = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in args]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        self.call("cuLaunchKernel", function, *grid, *block, shared, self.stream, pointers, None)

    def wait(self) -> None:
        """Until all that was begun is done, in any stream; what a kernel did wrong is said here."""
        self.call("cuCtxSynchronize")

    # ---- graphs and events

    def captured(self, begin: Callable[[], None]) -> ctypes.c_void_p:
        """What `begin` puts into the stream as a graph that can be launched; none of it runs now."""
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", self.stream, _RELAXED)
        try:
            begin()
        finally:  # also after an error: a stream that captures can do nothing else
            self.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        try:
            self.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_uint64(0))
        finally:
            self.call("cuGraphDestroy", graph)
        return made

    def run_graph(self, graph: ctypes.c_void_p) -> None:
        """Launch a graph and wait for its end."""
        self.call("cuGraphLaunch", graph, self.stream)
        self.call("cuStreamSynchronize", self.stream)

    def drop_graph(self, graph: ctypes.c_void_p) -> None:
        self.call("cuGraphExecDestroy", graph)

    def event(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(made), 0)
        return made

    def drop_event(self, event: ctypes.c_void_p) -> None:
        self.call("cuEventDestroy_v2", event)

    def milliseconds(self, first: ctypes.c_void_p, last: ctypes.c_void_p) -> float:
        """Between two stamps that have been reached."""
        found = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(found), first, last)
        return found.value


__all__ = ["Driver", "DriverFailed", "library", "names"]
