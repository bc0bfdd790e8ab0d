"""Input and output arrays of a call: checks of dtype and shape, conversion (DLPack, buffers), aligned results."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

try:
    from numpy.lib.array_utils import byte_bounds
except ImportError:  # before NumPy 2
    from numpy import byte_bounds  # type: ignore[attr-defined,no-redef]

from ..program.program import TensorInfo
from ..support.aligned import ALIGN, address, uninitialized
from ..support.dtypes import DTYPES
from ..support.errors import InputError


class NamedInfo(Protocol):
    """What errors say of an input or an output."""

    @property
    def name(self) -> str: ...


#: outputs of fewer bytes begin where NumPy has them begin
SMALL = 16 << 10
_CHAR = ctypes.c_char


def maker(info: TensorInfo) -> Callable[[], np.ndarray]:
    """A function that makes uninitialized arrays for an output: aligned to 64 bytes, but for small ones, where that
    takes longer than it saves."""
    shape, dtype, size = info.shape, info.numpy_dtype, info.nbytes + ALIGN
    if info.nbytes < SMALL:
        return partial(np.empty, shape, dtype)

    def make() -> np.ndarray:
        raw = uninitialized(size)
        return np.ndarray(shape, dtype, raw, -ctypes.addressof(_CHAR.from_buffer(raw)) % ALIGN)  # type: ignore[arg-type]

    return make


# ---- arguments of a call ----


def bind(infos: Sequence[NamedInfo], args: tuple[object, ...], what: str = "input") -> list[Any]:
    """The arguments in the order of `infos`, given by position or as one dict by name; else InputError."""
    if len(args) == 1 and isinstance(args[0], Mapping):
        given = args[0]
        unknown = [str(k) for k in given if all(k != t.name for t in infos)]
        missing = [t.name for t in infos if t.name not in given]
        if unknown or missing:
            said = [f"unknown {what} {', '.join(map(repr, unknown))}"] if unknown else []
            said += [f"missing {what} {', '.join(map(repr, missing))}"] if missing else []
            raise InputError("; ".join(said), stage="run", hint=_expected(infos, what))
        return [given[t.name] for t in infos]
    if len(args) != len(infos):
        were = "was" if len(args) == 1 else "were"
        raise InputError(
            f"the model takes {len(infos)} {what}{'s' * (len(infos) != 1)}, {len(args)} {were} given",
            stage="run",
            hint=_expected(infos, what),
        )
    return list(args)


def with_named(
    infos: Sequence[NamedInfo], args: tuple[object, ...], named: Mapping[str, object]
) -> tuple[dict[str, object]]:
    """Arguments by position, and those after them by keyword, as one dict by name; else InputError."""
    if len(args) == 1 and isinstance(args[0], Mapping):
        hint = f"put {', '.join(named)} into the dict"
        raise InputError("inputs are given by a dict and by keywords at once", stage="run", hint=hint)
    if len(args) + len(named) > len(infos):
        bind(infos, (*args, *named.values()))  # says what is wrong
    first = {t.name: value for t, value in zip(infos, args, strict=False)}
    twice = [name for name in named if name in first]
    if twice:
        raise InputError(f"input {twice[0]!r} is given twice, by position and by keyword", stage="run")
    return ({**first, **named},)


def spread(inputs: object) -> tuple[object, ...]:
    """The arguments of a call from a dict by name, a list in order, or the only input."""
    return tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)


def _expected(infos: Sequence[NamedInfo], what: str) -> str:
    return f"expected {what}s: {'; '.join(map(str, infos)) or 'none'}"


def to_array(value: object, info: TensorInfo, infos: Sequence[TensorInfo], what: str = "input") -> np.ndarray:
    """`value` as a C-contiguous array of exactly the shape and dtype of `info`: nothing is cast, what fits is used."""
    array = value if isinstance(value, np.ndarray) else imported(value, info, infos, what)
    if array.dtype != info.numpy_dtype or array.shape != info.shape:
        raise InputError(
            f"{what} {info.name!r} has {describe(array)}, the model takes {info.dtype}{list(info.shape)}",
            stage="run",
            hint=_cast_hint(array, info) or _expected(infos, what),
        )
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = np.array(array, order="C", copy=True)
    return array


def _cast_hint(array: np.ndarray, info: TensorInfo) -> str:
    if array.shape == info.shape:
        kind = info.numpy_dtype
        return f"dtypes are not converted silently: pass x.astype({str(kind)!r}) if that is what you mean"
    return ""


def describe(array: np.ndarray) -> str:
    """Dtype and shape in words: ``f32[2, 3]``."""
    swapped = " (byte-swapped)" if not array.dtype.isnative else ""
    return f"{DTYPES.get(array.dtype, array.dtype)}{swapped}{list(array.shape)}"


def imported(value: object, info: TensorInfo, infos: Sequence[TensorInfo], what: str = "input") -> np.ndarray:
    """An array from another library, without a copy where it shares its memory."""
    try:
        if hasattr(value, "__dlpack__"):
            try:
                return np.from_dlpack(value)
            except (BufferError, RuntimeError, TypeError, ValueError):
                if not hasattr(value, "__array__"):
                    raise
        if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            return np.asarray(value)
    except Exception as e:
        raise InputError(
            f"{what} {info.name!r} ({type(value).__name__}) cannot be read as an array in this process's memory: {e}",
            stage="run",
            hint="move it to the CPU and detach it from gradients first",
        ) from None
    raise InputError(
        f"{what} {info.name!r} is a {type(value).__name__}, not an array",
        stage="run",
        hint=f"pass a NumPy array or an object with __dlpack__ or __array__; {_expected(infos, what)}",
    )


def check_outputs(
    out: Sequence[np.ndarray] | Mapping[str, np.ndarray],
    infos: Sequence[TensorInfo],
    inputs: Sequence[np.ndarray],
    pointers: Sequence[int],
) -> tuple[list[np.ndarray], list[int]]:
    """Preallocated outputs, which must fit exactly and share no memory with inputs or each other, with their addresses;
    `pointers` are the addresses of the inputs, which are contiguous."""
    return _checked_outputs(out, infos, [(first, first + a.nbytes) for first, a in zip(pointers, inputs, strict=True)])


def copy_outputs(
    out: Sequence[np.ndarray] | Mapping[str, np.ndarray],
    infos: Sequence[NamedInfo],
    results: Sequence[np.ndarray],
    inputs: Iterable[object],
) -> list[np.ndarray]:
    """Results whose shapes a run has found, in preallocated outputs, which are checked as `check_outputs` does."""
    made: list[TensorInfo] = []
    for info, result in zip(infos, results, strict=True):
        if not isinstance(result, np.ndarray):
            raise InputError(f"output {info} is no array, and cannot be written to one of out", stage="run")
        made.append(TensorInfo(info.name, result.shape, DTYPES[result.dtype]))
    given = [a for value in inputs for a in (value if isinstance(value, list) else [value])]
    arrays, _ = _checked_outputs(out, made, [byte_bounds(a) for a in given if isinstance(a, np.ndarray)])
    for array, result in zip(arrays, results, strict=True):
        array[...] = result
    return arrays


def _checked_outputs(
    out: Sequence[np.ndarray] | Mapping[str, np.ndarray], infos: Sequence[TensorInfo], taken: list[tuple[int, int]]
) -> tuple[list[np.ndarray], list[int]]:
    """Outputs and their addresses; `taken` is memory, from one address to another, that they must not have."""
    if not isinstance(out, (Mapping, list, tuple)):
        raise InputError(
            f"out is of type {type(out).__name__}, not a list of arrays or a dict of them by name",
            stage="run",
            hint=_expected(infos, "output"),
        )
    arrays = list(out) if type(out) is list or type(out) is tuple else []
    if len(arrays) != len(infos):
        arrays = bind(infos, (out,) if isinstance(out, Mapping) else tuple(out), "output")
    addresses = []
    for array, info in zip(arrays, infos, strict=True):
        if not isinstance(array, np.ndarray) or array.dtype != info.numpy_dtype or array.shape != info.shape:
            got = describe(array) if isinstance(array, np.ndarray) else type(array).__name__
            raise InputError(
                f"out for {info.name!r} is {got}, the model gives {info.dtype}{list(info.shape)}",
                stage="run",
                hint=_expected(infos, "output"),
            )
        flags = array.flags
        if not (flags.c_contiguous and flags.writeable and flags.aligned):
            raise InputError(f"out for {info.name!r} must be C-contiguous, aligned and writeable", stage="run")
        first = address(array)
        end = first + array.nbytes
        for other, other_end in taken:
            if first < other_end and other < end:
                raise InputError(f"out for {info.name!r} shares memory with another argument", stage="run")
        taken.append((first, end))
        addresses.append(first)
    return arrays, addresses
