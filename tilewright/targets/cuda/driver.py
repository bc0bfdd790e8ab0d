"""NVIDIA's driver through ctypes: memory of a GPU, modules, launches; what fails is an error with its words."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

from ...support.errors import PackageError

_NAMES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
#: what the driver calls the attributes that are asked for
_MOST_DYNAMIC_SHARED = 8
_MAJOR, _MINOR = 75, 76


def library() -> Any:
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


class Driver:
    """The first GPU of this machine, with its primary context. `functions` are the driver's, or stand for it."""

    def __init__(self, functions: Any = None) -> None:
        self.functions = functions if functions is not None else library()
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.device, self.context = device, context
        self.enter()

    def call(self, name: str, *args: Any) -> None:
        """Call a function; PackageError with what the driver says where it fails."""
        code = getattr(self.functions, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self.functions.cuGetErrorString(code, ctypes.byref(text))
            said = (text.value or b"").decode() or f"error {code}"
            raise PackageError(f"NVIDIA's driver failed in {name}: {said}", stage="run")

    def enter(self) -> None:
        """Make this the context of the thread that calls."""
        self.call("cuCtxSetCurrent", self.context)

    def capability(self) -> tuple[int, int]:
        """The generation of the GPU: (8, 0) for sm_80."""
        found = []
        for attribute in (_MAJOR, _MINOR):
            value = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self.device)
            found.append(value.value)
        return found[0], found[1]

    # ---- memory

    def allocate(self, size: int) -> int:
        """The address of so many bytes."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def to_device(self, to: int, source: int, size: int) -> None:
        if size:
            self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(to), ctypes.c_void_p(source), ctypes.c_size_t(size))

    def to_host(self, to: int, source: int, size: int) -> None:
        if size:
            self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(to), ctypes.c_uint64(source), ctypes.c_size_t(size))

    def copy(self, to: int, source: int, size: int) -> None:
        if size:
            self.call("cuMemcpyDtoD_v2", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size))

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
        self, function: ctypes.c_void_p, grid: Sequence[int], block: Sequence[int], shared: int, args: Sequence[Any]
    ) -> None:
        """Begin a kernel on addresses, and on what is given by its bytes (`tensor_maps`)."""
        values = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in args]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        self.call("cuLaunchKernel", function, *grid, *block, shared, None, pointers, None)

    def wait(self) -> None:
        """Until all that was begun is done; what a kernel did wrong is said here."""
        self.call("cuCtxSynchronize")


__all__ = ["Driver", "library"]
